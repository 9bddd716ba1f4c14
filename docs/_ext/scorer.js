/* Sphinx puts this behind its searchtools.js: the order of the results, and numbers. */

/* A page of prose comes before docstrings, history and what is for developers. */
const WEIGHTS = [
  [/^(howto|tutorial)\//, 1.1],
  [/^reference\/api/, 0.3],
  [/^internals\//, 0.5],
  [/^(changelog|about\/benchmarks)$/, 0.5],
];

Scorer.score = ([page, , , , score, , kind]) => {
  if (kind === SearchResultKind.object) return score === Scorer.objNameMatch + Scorer.objPrio[1] ? 10 : 1;
  const [, weight] = WEIGHTS.find(([pages]) => pages.test(page)) ?? [null, 1];
  return weight * (kind === SearchResultKind.title ? 1.3 * score : score);
};

/* Sphinx drops words that are a number. Those of three digits are in the index, such as 429. */
const parseQuery = Search._parseQuery;
Search._parseQuery = (query) => {
  const parsed = parseQuery(query);
  const [, terms, , highlighted] = parsed;
  for (const word of splitQuery(query))
    if (/^\d{3,}$/.test(word) && Object.hasOwn({ ...Search._index.terms, ...Search._index.titleterms }, word)) {
      terms.add(word);
      highlighted.add(word);
    }
  return parsed;
};
