// Light, dark or as the system says; set before anything is drawn, so that the page does not flash.
(() => {
  const kinds = ["system", "light", "dark"];
  const read = () => { try { return localStorage.getItem("edgebed-theme") || "system"; } catch { return "system"; } };
  const apply = (kind) => {
    if (kind === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = kind;
    const button = document.getElementById("theme");
    if (button) button.textContent = `Theme: ${kind}`;
  };
  apply(read());
  addEventListener("DOMContentLoaded", () => {
    apply(read());
    document.getElementById("theme").addEventListener("click", () => {
      const next = kinds[(kinds.indexOf(read()) + 1) % kinds.length];
      try { localStorage.setItem("edgebed-theme", next); } catch { /* private mode: not kept */ }
      apply(next);
    });
  });
})();
