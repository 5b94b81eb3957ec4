// Diagrams: Material draws them with window.mermaid where it finds one, and else asks a CDN. This one fetches our copy when a page needs it.
(() => {
  const source = new URL("../vendor/mermaid/mermaid.esm.min.mjs", document.currentScript.src);
  let configuration;
  let loading;

  const load = () => (loading ??= import(source).then(({ default: mermaid }) => {
    mermaid.initialize(configuration);
    return mermaid;
  }));

  window.mermaid = {
    initialize: (wanted) => { configuration = { ...wanted, startOnLoad: false }; },
    render: async (...parameters) => (await load()).render(...parameters),
  };
})();
