// Names for what Material leaves without one, so that a screen reader can tell it: the search, buttons of code blocks, annotations.
(() => {
  function name(root) {
    root.querySelectorAll(".md-search[role=dialog]:not([aria-label])").forEach((search) => search.setAttribute("aria-label", "Search"));
    document.querySelectorAll(".md-code__nav").forEach((nav, index) => nav.setAttribute("aria-label", `Code block ${index + 1}`));
    document.querySelectorAll(".md-annotation__index:not([aria-label])").forEach((link) => {
      link.setAttribute("aria-label", `Note ${link.querySelector("[data-md-annotation-id]")?.dataset.mdAnnotationId ?? ""}`);
    });
  }

  document$.subscribe(() => {
    name(document);
    // Material adds buttons and annotations once a block comes into view.
    const content = document.querySelector(".md-content");
    if (content) new MutationObserver(() => name(document)).observe(content, { childList: true, subtree: true });
  });
})();
