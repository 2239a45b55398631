// The explorer inside a page says how high it is, and its frame becomes so.
addEventListener("message", ({ source, data }) => {
  for (const frame of document.querySelectorAll("iframe.explorer"))
    if (frame.contentWindow === source && data?.iclflow > 0) frame.style.height = `${Math.min(data.iclflow, 4000)}px`;
});
