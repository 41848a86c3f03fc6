// Places for the nodes of a graph: sources left, dests right, so that lines cross as little as a simple rule can make it.

const SWEEPS = 6;

/**
 * `edges` are [from, to]. Returns columns of names, left to right. An edge that closes a cycle counts for nothing: it is drawn backwards.
 */
export function layersOf(edges) {
  const nodes = [...new Set(edges.flat())];
  const forward = withoutCycles(nodes, edges);
  const depth = new Map(nodes.map((node) => [node, 0]));
  // As many rounds as the longest chain: each puts a dest right of all its sources.
  for (let round = 0, isChanged = true; isChanged && round < nodes.length; round += 1) {
    isChanged = false;
    for (const [from, to] of forward) {
      if (depth.get(to) > depth.get(from)) continue;
      depth.set(to, depth.get(from) + 1);
      isChanged = true;
    }
  }
  const layers = [];
  for (const node of nodes.sort()) (layers[depth.get(node)] ??= []).push(node);
  for (let sweep = 0; sweep < SWEEPS; sweep += 1) sortByNeighbours(layers, forward, sweep % 2 === 0);
  return layers;
}

function withoutCycles(nodes, edges) {
  const next = Map.groupBy(edges, ([from]) => from);
  const state = new Map();
  const kept = [];
  for (const root of nodes) {
    // A stack instead of calls: a chain may be long.
    const stack = [[root, 0]];
    while (stack.length) {
      const top = stack.at(-1);
      const [node, place] = top;
      if (place === 0) {
        if (state.has(node)) {
          stack.pop();
          continue;
        }
        state.set(node, "open");
      }
      const edge = (next.get(node) ?? [])[place];
      top[1] += 1;
      if (edge === undefined) {
        state.set(node, "done");
        stack.pop();
      } else if (state.get(edge[1]) !== "open") {
        kept.push(edge);
        if (!state.has(edge[1])) stack.push([edge[1], 0]);
      }
    }
  }
  return kept;
}

/** Sorts each layer by the middle of its neighbours in the layer before it, or after it. */
function sortByNeighbours(layers, edges, isForward) {
  const place = new Map(layers.flatMap((layer) => layer.map((node, number) => [node, number - layer.length / 2])));
  const neighbours = new Map();
  for (const [from, to] of edges) {
    const [node, other] = isForward ? [to, from] : [from, to];
    neighbours.set(node, [...(neighbours.get(node) ?? []), place.get(other)]);
  }
  const middle = (node) => {
    const places = neighbours.get(node);
    return places === undefined ? place.get(node) : places.reduce((sum, each) => sum + each, 0) / places.length;
  };
  for (const layer of layers) layer.sort((one, other) => middle(one) - middle(other) || (one < other ? -1 : 1));
}
