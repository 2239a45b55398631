// Serious accessibility faults of a page, found without a library: names, labels, roles, contrast, targets.
(() => {
  const faults = [], shown = e => e.getClientRects().length && getComputedStyle(e).visibility !== 'hidden';
  const name = e => (e.getAttribute('aria-label') || e.labels?.[0]?.textContent || e.textContent
    || document.getElementById(e.getAttribute('aria-labelledby'))?.textContent || '').trim();
  const all = s => [...document.querySelectorAll(s)].filter(shown);
  for (const e of all('button, a, input, select, [role=slider], [role=img], summary, progress'))
    if (!name(e)) faults.push('no name: ' + e.outerHTML.slice(0, 80));
  const ids = [...document.querySelectorAll('[id]')].map(e => e.id);
  for (const id of new Set(ids)) if (ids.filter(i => i === id).length > 1) faults.push('twice: ' + id);
  for (const e of document.querySelectorAll('[aria-labelledby]'))
    if (!document.getElementById(e.getAttribute('aria-labelledby'))) faults.push('label gone: ' + e.id);
  if (document.documentElement.lang !== 'en' || !document.title) faults.push('language or title');
  if (document.querySelectorAll('h1').length !== 1 || !document.querySelector('main')) faults.push('landmarks');
  for (const e of all('[role=slider]')) if (!e.hasAttribute('aria-valuenow')) faults.push('slider without value');
  for (const e of all('button')) if (e.getBoundingClientRect().height < 24) faults.push('small: ' + name(e));
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = c => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = c; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((s, v, i) => s + v * [.2126, .7152, .0722][i], 0);
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c[3] > 200) return c; } return [255, 255, 255]; };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n = walk.nextNode(); n; n = walk.nextNode()) {
    const e = n.parentElement;
    if (!n.data.trim() || !shown(e) || /SCRIPT|STYLE/.test(e.tagName) || e.closest('.bands, .names, .matrix, :disabled')) continue;
    const ink = e.closest('svg') ? getComputedStyle(e).fill : getComputedStyle(e).color;
    let seen = 1;
    for (let up = e; up; up = up.parentElement) seen *= Number(getComputedStyle(up).opacity);
    const paper = behind(e), mixed = rgb(ink).map((v, i) => seen * v + (1 - seen) * paper[i]);
    const [a, b] = [light(mixed), light(paper)];
    const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
    if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${n.data.trim().slice(0, 40)}`);
  }
  return faults;
})();
