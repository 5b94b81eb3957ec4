// Mathematics: KaTeX is fetched from this site, and only by pages that hold a formula.
(() => {
  const root = new URL("../vendor/katex/", document.currentScript.src);

  const load = (() => {
    let loading;
    return () => (loading ??= new Promise((resolve, reject) => {
      const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("katex.min.css", root) });
      const script = Object.assign(document.createElement("script"), { src: new URL("katex.min.js", root), onload: resolve, onerror: reject });
      document.head.append(style, script);
    }));
  })();

  // A formula wider than the page scrolls in its own frame, which the keyboard must reach. Its width is known once the fonts are there.
  const reach = () => document.querySelectorAll(".katex-display").forEach((display) => {
    if (display.scrollWidth > display.clientWidth) display.tabIndex = 0;
    else display.removeAttribute("tabindex");
  });
  document.fonts.addEventListener("loadingdone", reach);
  window.addEventListener("resize", reach);

  // pymdownx.arithmatex writes \(...\) in the line and \[...\] on lines of their own.
  function typeset(element) {
    const source = element.textContent.trim();
    const displayMode = source.startsWith("\\[");
    katex.render(source.slice(2, -2), element, { displayMode, throwOnError: false });
    element.classList.add("typeset");
  }

  document$.subscribe(async () => {
    const formulas = document.querySelectorAll(".arithmatex:not(.typeset)");
    if (formulas.length === 0) return;
    await load();
    formulas.forEach(typeset);
    reach();
  });
})();
