"""The live page: reads the records of runs, finished or not, and shows them in a browser. It never touches a run."""
