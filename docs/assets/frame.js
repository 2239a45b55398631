// The explorer inside a page says how high it is, and its frame becomes so. It is dark where the page is.
const explorers = () => document.querySelectorAll("iframe.explorer");
const dress = frame =>
  frame.contentWindow.postMessage({ theme: document.body.dataset.mdColorScheme === "slate" ? "dark" : "light" }, "*");
addEventListener("message", ({ source, data }) => {
  for (const frame of explorers())
    if (frame.contentWindow === source && data?.iclflow > 0) {
      frame.style.height = `${Math.min(data.iclflow, 4000)}px`;
      dress(frame);
    }
});
new MutationObserver(() => explorers().forEach(dress))
  .observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
