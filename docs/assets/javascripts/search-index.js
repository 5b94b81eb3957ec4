// The search index is the largest file of the site. Material asks for it on every page; here its request waits until somebody opens the search.
(() => {
  const { open, send } = XMLHttpRequest.prototype, waiting = [];
  let opened = false;

  const begin = ({ target }) => {
    if (opened || !target.matches?.(".md-search__input, #__search")) return;
    opened = true;
    waiting.forEach((start) => start());
  };

  XMLHttpRequest.prototype.open = function (method, url, ...rest) {
    this.isSearchIndex = String(url).endsWith("/search/search_index.json");
    return open.call(this, method, url, ...rest);
  };
  XMLHttpRequest.prototype.send = function (...body) {
    if (this.isSearchIndex && !opened) waiting.push(() => send.apply(this, body));
    else send.apply(this, body);
  };
  document.addEventListener("focusin", begin); // by keyboard or pointer, and for a link that searches (?q=)
  document.addEventListener("change", begin); // the button of narrow pages
})();
