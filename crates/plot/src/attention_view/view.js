(() => {
  "use strict";

  /** Maximum number of cells along the side of a thumbnail. Larger patterns show the maximum of each patch. */
  const THUMB_CELLS = 64;
  const LARGE = 400;
  /** Margin around the large pattern, half the height of a label. */
  const EDGE = 8;
  const INK = "#1a1a1a";

  for (const host of document.querySelectorAll("div.hooklens-attention")) {
    if (!host.shadowRoot) view(host);
  }

  function view(host) {
    const data = JSON.parse(host.querySelector("script").textContent);
    const root = host.attachShadow({ mode: "open" });
    show(0);

    /** Shows one of the texts, keeping the head, token and color scale chosen for the previous text. */
    function show(number, chosen = {}) {
      root.replaceChildren(host.querySelector("template").content.cloneNode(true));
      const texts = [data, ...data.others];
      const select = root.querySelector("select");
      select.parentElement.hidden = texts.length === 1;
      texts.forEach(({ tokens }, at) => {
        const words = tokens.join(" ").slice(0, 60);
        select.append(new Option(`${at + 1}: ${words}`, at, at === number, at === number));
      });
      const { stop, state } = text(root, data, texts[number], chosen);
      select.addEventListener("change", () => {
        stop();
        show(Number(select.value), state);
        root.querySelector("select").focus();
      });
    }
  }

  /** Shows one text. Returns the selection in it, and a function that stops observing the size of the view. */
  function text(root, data, { tokens, causal, first, heads: given }, chosen) {
    const part = (name) => root.querySelector(name);
    const count = tokens.length;
    const labels = tokens.map((text, index) => `${first + index} ${text}`);
    const heads = given.map((head) => ({ ...head, cells: bytes(head.cells), name: `L${head.layer}H${head.head}` }));
    const layers = [...new Set(heads.map((head) => head.layer))];
    const numbers = [...new Set(heads.map((head) => head.head))].sort((a, b) => a - b);
    const most = heads.reduce((most, head) => Math.max(most, head.most), 1);
    const colors = table(data.colors);

    const start = heads.findIndex((head) => data.start && head.layer === data.start[0] && head.head === data.start[1]);
    const state = { head: Math.max(start, 0), token: count - 1, reverse: false, own: false, ...chosen, hover: null };
    state.head = Math.min(state.head, heads.length - 1);
    state.token = Math.min(state.token, count - 1);
    part(".reverse").checked = state.reverse;
    part(".own").checked = state.own;

    part("h2").textContent = data.title;
    part(".frame").setAttribute("aria-label", `Attention patterns ${data.title}`);
    const stops = data.colors.map((stop) => `rgb(${stop.join()})`);
    part(".scale i").style.background = `linear-gradient(to right, ${stops.join()})`;

    // Values of a pattern, in steps of 1/255 of its maximum.
    const step = (head, query, key) =>
      causal ? (key > query ? 0 : head.cells[(query * (query + 1)) / 2 + key]) : head.cells[query * count + key];
    const value = (head, query, key) => (step(head, query, key) * head.most) / 255;
    // In a causal pattern, the first token can only attend to itself, so that its weight of 1 says nothing about the head.
    const from = causal && first === 0 && count > 1 ? 1 : 0;
    for (const head of heads) head.top = (head.cells.subarray(from).reduce((a, b) => Math.max(a, b), 0) * head.most) / 255 || head.most;
    const top = (head) => (state.own ? head.top : most);
    const colorOf = (share) => colors[Math.min(255, Math.round(255 * share))];

    /** Max-pools the pattern to `side` by `side` cells. */
    function pooled(head, side) {
      const cells = new Uint8Array(side * side);
      for (let query = 0; query < count; query += 1) {
        const row = Math.floor((query * side) / count) * side;
        for (let key = 0; key < (causal ? query + 1 : count); key += 1) {
          const at = row + Math.floor((key * side) / count);
          cells[at] = Math.max(cells[at], step(head, query, key));
        }
      }
      return cells;
    }

    function paint(canvas, head, side) {
      const cells = (head.pooled ??= {})[side] ?? (head.pooled[side] = pooled(head, side));
      canvas.width = canvas.height = side;
      const image = new ImageData(side, side);
      const factor = head.most / top(head) / 255;
      for (let at = 0; at < cells.length; at += 1) {
        // Cells hidden by the causal mask stay white.
        if (causal && at % side > Math.floor(at / side)) continue;
        const color = colorOf(cells[at] * factor);
        image.data.set([color[0], color[1], color[2], 255], 4 * at);
      }
      canvas.getContext("2d").putImageData(image, 0, 0);
    }

    // Heads: one row per layer, one column per head.
    const headButtons = heads.map((head, index) => {
      const button = document.createElement("button");
      const canvas = document.createElement("canvas");
      const name = document.createElement("span");
      name.textContent = head.name;
      button.type = "button";
      button.className = "head";
      button.append(canvas, name);
      button.setAttribute("aria-label", `${head.name}: layer ${head.layer}, head ${head.head}`);
      button.style.gridRow = layers.indexOf(head.layer) + 1;
      button.style.gridColumn = numbers.indexOf(head.head) + 1;
      button.addEventListener("click", () => chooseHead(index));
      button.addEventListener("focus", () => chooseHead(index));
      part(".heads").append(button);
      return button;
    });

    // Tokens: the prompt's text, with its line breaks.
    const tokenButtons = tokens.map((text, index) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "token";
      const position = document.createElement("small");
      position.textContent = first + index;
      button.append(position, text);
      button.title = `${first + index}: ${text}`;
      button.addEventListener("click", () => chooseToken(index));
      button.addEventListener("focus", () => chooseToken(index));
      button.addEventListener("mouseenter", () => hover({ token: index }));
      part(".tokens").append(button);
      if (text.includes("↵")) part(".tokens").append(document.createElement("br"));
      return button;
    });
    part(".tokens").addEventListener("mouseleave", () => hover(null));

    function chooseHead(index) {
      state.head = index;
      show();
    }
    function chooseToken(index) {
      state.token = index;
      state.hover = null;
      show();
      reveal();
    }
    /** Scrolls the text, and not the page, to the selected token. */
    function reveal() {
      const box = part(".tokens");
      const [around, token] = [box, tokenButtons[state.token]].map((one) => one.getBoundingClientRect());
      if (token.top < around.top) box.scrollTop -= around.top - token.top + 6;
      if (token.bottom > around.bottom) box.scrollTop += token.bottom - around.bottom + 6;
    }
    function hover(what) {
      state.hover = what;
      show();
    }

    part(".heads").addEventListener("keydown", (event) => {
      const { layer, head } = heads[state.head];
      const beside = (list, now, by) => list[list.indexOf(now) + by];
      const find = (layer, head) => heads.findIndex((one) => one.layer === layer && one.head === head);
      const moves = {
        ArrowLeft: () => find(layer, beside(numbers, head, -1)),
        ArrowRight: () => find(layer, beside(numbers, head, 1)),
        ArrowUp: () => find(beside(layers, layer, -1), head),
        ArrowDown: () => find(beside(layers, layer, 1), head),
        Home: () => 0,
        End: () => heads.length - 1,
      };
      move(event, moves, headButtons);
    });

    part(".tokens").addEventListener("keydown", (event) => {
      const moves = {
        ArrowLeft: () => state.token - 1,
        ArrowRight: () => state.token + 1,
        ArrowUp: () => line(-1),
        ArrowDown: () => line(1),
        Home: () => 0,
        End: () => count - 1,
      };
      move(event, moves, tokenButtons);
    });

    /** Handles an arrow key, and hides the event from the surrounding page, which may use arrow keys itself. */
    function move(event, moves, buttons) {
      if (!(event.key in moves) || event.ctrlKey || event.altKey || event.metaKey) return;
      event.preventDefault();
      event.stopPropagation();
      buttons[moves[event.key]()]?.focus();
    }

    /** The token above or below the selected one. */
    function line(by) {
      const middle = (button) => button.offsetLeft + button.offsetWidth / 2;
      const from = tokenButtons[state.token];
      let best = -1;
      for (let index = state.token + by; index >= 0 && index < count; index += by) {
        const button = tokenButtons[index];
        if (button.offsetTop === from.offsetTop) continue;
        if (best >= 0 && button.offsetTop !== tokenButtons[best].offsetTop) break;
        const apart = (one) => Math.abs(middle(one) - middle(from));
        if (best < 0 || apart(button) < apart(tokenButtons[best])) best = index;
      }
      return best;
    }

    part(".reverse").addEventListener("change", (event) => {
      state.reverse = event.target.checked;
      show();
    });
    part(".own").addEventListener("change", (event) => {
      state.own = event.target.checked;
      paintThumbs();
      show();
    });

    // The large pattern.
    const large = part(".large canvas");
    const plot = { side: 0, left: 0, cell: 0 };

    function cellAt(event) {
      const key = Math.floor((event.offsetX - plot.left) / plot.cell);
      const query = Math.floor((event.offsetY - EDGE) / plot.cell);
      return query < 0 || key < 0 || query >= count || key >= count ? null : { query, key };
    }
    large.addEventListener("mousemove", (event) => hover(cellAt(event)));
    large.addEventListener("mouseleave", () => hover(null));
    large.addEventListener("click", (event) => {
      const cell = cellAt(event);
      if (cell) chooseToken(state.reverse ? cell.key : cell.query);
    });

    function drawLarge(token) {
      const head = heads[state.head];
      const dots = window.devicePixelRatio || 1;
      large.width = large.height = plot.side * dots;
      large.style.width = large.style.height = `${plot.side}px`;
      const context = large.getContext("2d");
      context.scale(dots, dots);
      context.font = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif";
      const widest = labels.reduce((most, text) => Math.max(most, context.measureText(text.slice(0, 40)).width), 0);
      const margin = Math.min(widest, plot.side * 0.22) + 8;
      const length = plot.side - margin - EDGE - 1;
      Object.assign(plot, { left: margin, cell: length / count });

      const picture = document.createElement("canvas");
      paint(picture, head, Math.min(count, Math.max(1, Math.floor(length))));
      context.imageSmoothingEnabled = false;
      context.drawImage(picture, margin, EDGE, length, length);
      context.strokeStyle = "#767676";
      context.strokeRect(margin - 0.5, EDGE - 0.5, length + 1, length + 1);

      const cell = state.hover?.query === undefined ? null : state.hover;
      const marked = { query: cell ? cell.query : state.reverse ? -1 : token, key: cell ? cell.key : state.reverse ? token : -1 };
      context.strokeStyle = "#c2410c";
      context.lineWidth = 1.5;
      // Draw outside the cells, so that thin cells stay visible.
      const out = plot.cell < 8 ? 1.5 : 0;
      const [from, wide] = [(index) => index * plot.cell - out, plot.cell + 2 * out];
      if (marked.query >= 0) context.strokeRect(margin, EDGE + from(marked.query), length, wide);
      if (marked.key >= 0) context.strokeRect(margin + from(marked.key), EDGE, wide, length);

      const fitted = new Map();
      const fit = (text) => {
        if (!fitted.has(text)) fitted.set(text, cut(context, text, margin - 8));
        return fitted.get(text);
      };
      context.textBaseline = "middle";
      context.textAlign = "right";
      const every = Math.max(1, Math.ceil(13 / plot.cell));
      const label = (index, strong) => {
        const text = fit(labels[index]);
        const at = (index + 0.5) * plot.cell;
        const draw = (x, y) => {
          if (strong) {
            context.fillStyle = "#ffe8d6";
            context.fillRect(x - context.measureText(text).width - 3, y - 7, context.measureText(text).width + 6, 14);
          }
          context.fillStyle = INK;
          context.fillText(text, x, y);
        };
        return {
          query: () => draw(margin - 5, EDGE + at),
          key: () => {
            context.save();
            context.translate(margin + at, EDGE + length + 5);
            context.rotate(-Math.PI / 2);
            draw(0, 0);
            context.restore();
          },
        };
      };
      part(".thinned").textContent = every > 1 ? `${Math.ceil(count / every)} of ${count} tokens are labeled beside the pattern.` : "";
      for (let index = 0; index < count; index += every) {
        label(index).query();
        label(index).key();
      }
      if (marked.query >= 0) label(marked.query, true).query();
      if (marked.key >= 0) label(marked.key, true).key();
      large.setAttribute("aria-label", `Pattern of layer ${head.layer}, head ${head.head}: rows attend to columns`);
    }

    function paintThumbs() {
      heads.forEach((head, index) => paint(headButtons[index].firstChild, head, Math.min(count, THUMB_CELLS)));
    }

    function show() {
      const head = heads[state.head];
      const over = state.hover;
      const token = over?.token ?? (state.reverse ? over?.key : over?.query) ?? state.token;
      part(".scale .top").textContent = `${top(head) < head.most ? "≥ " : ""}${top(head).toFixed(2)}`;
      headButtons.forEach((button, index) => {
        button.setAttribute("aria-pressed", index === state.head);
        button.tabIndex = index === state.head ? 0 : -1;
      });

      const [query, key] = state.reverse ? [(other) => other, () => token] : [() => token, (other) => other];
      const found = [];
      tokenButtons.forEach((button, other) => {
        const share = value(head, query(other), key(other));
        if (share >= 0.005) found.push([share, other]);
        const color = colorOf(share / top(head));
        const unseen = causal && key(other) > query(other);
        button.style.background = unseen ? "none" : `rgb(${color.join()})`;
        button.style.color = unseen ? "" : ink(color);
        button.className = `token${unseen ? " unseen" : ""}${other === token ? " chosen" : ""}`;
        button.tabIndex = other === state.token ? 0 : -1;
        button.setAttribute("aria-pressed", other === state.token);
      });
      drawLarge(token);
      says(head, token, found, over);
    }

    function says(head, token, found, over) {
      // Isolate the text direction, so that right-to-left tokens do not reorder the surrounding text.
      const short = (text) => (text.length > 40 ? `${[...text].slice(0, 40).join("")}…` : text);
      const name = (index) => `${first + index} “\u2068${short(tokens[index])}\u2069”`;
      if (over?.query !== undefined) {
        const share = value(head, over.query, over.key).toFixed(2);
        part(".says").textContent = `${head.name}: ${name(over.query)} attends to ${name(over.key)}: ${share}`;
        return;
      }
      found.sort((a, b) => b[0] - a[0]);
      const list = found.slice(0, 6).map(([share, other]) => `${name(other)} ${share.toFixed(2)}`);
      const who = state.reverse ? "is attended to by" : "attends to";
      part(".says").textContent = `${head.name}: ${name(token)} ${who} ${list.join(", ") || "nothing"}`;
    }

    function layout() {
      const width = part(".frame").clientWidth - 24;
      // In a narrow window, the large pattern is below the thumbnails.
      const narrow = width < 520;
      part(".frame").classList.toggle("narrow", narrow);
      plot.side = Math.round(Math.min(LARGE, narrow ? width : width * 0.55));
      const room = narrow ? width - 8 : width - plot.side - 24 - 8 - 16;
      // Fill the width; fit the height, too, if thumbnails stay large enough to read.
      const [across, down] = [room / numbers.length - 12, plot.side / layers.length - 26];
      const thumb = Math.floor(Math.max(Math.min(across, Math.max(down, 48), 150), 34));
      part(".heads").style.setProperty("--thumb", `${thumb}px`);
      part(".heads").style.height = narrow ? "auto" : `${plot.side}px`;
      part(".heads").style.maxHeight = narrow ? "220px" : "none";
      show();
      reveal();
    }
    paintThumbs();
    layout();
    const observer = new ResizeObserver(layout);
    observer.observe(part(".frame"));
    return { state, stop: () => observer.disconnect() };
  }

  function bytes(text) {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  }

  /** Interpolates 256 colors between the stops. */
  function table(stops) {
    return Array.from({ length: 256 }, (_, step) => {
      const place = (step / 255) * (stops.length - 1);
      const below = Math.min(Math.floor(place), stops.length - 2);
      return stops[below].map((from, channel) => Math.round(from + (stops[below + 1][channel] - from) * (place - below)));
    });
  }

  function ink([red, green, blue]) {
    const linear = (part) => (part <= 10 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue) < 0.179 ? "#fff" : "#000";
  }

  /** Truncates text to a width in pixels. */
  function cut(context, text, width) {
    if (context.measureText(text).width <= width) return text;
    const letters = [...text].slice(0, 80);
    while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > width) letters.pop();
    return `${letters.join("")}…`;
  }
})();
