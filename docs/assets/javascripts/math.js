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

  // A formula wider than the page scrolls in its own frame, which the keyboard must reach.
  const scrollers = new ResizeObserver((entries) => entries.forEach(({ target }) => {
    if (target.scrollWidth > target.clientWidth) target.tabIndex = 0;
    else target.removeAttribute("tabindex");
  }));

  // pymdownx.arithmatex writes \(...\) in the line and \[...\] on lines of their own.
  function typeset(element) {
    const source = element.textContent.trim();
    const displayMode = source.startsWith("\\[");
    katex.render(source.slice(2, -2), element, { displayMode, throwOnError: false });
    element.classList.add("typeset");
    const display = element.querySelector(".katex-display");
    if (display) scrollers.observe(display);
  }

  document$.subscribe(async () => {
    const formulas = document.querySelectorAll(".arithmatex:not(.typeset)");
    if (formulas.length === 0) return;
    await load();
    formulas.forEach(typeset);
  });
})();
