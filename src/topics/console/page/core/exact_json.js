// JSON whose numbers keep their text: 12345678901234567890 and 1.0 are shown as they were written.

export class ExactNumber {
  constructor(text) {
    this.text = text;
  }

  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.text) : Number(this.text);
  }
}

/** Parses JSON. A number that JavaScript would change is an `ExactNumber`. */
export function parseExact(text) {
  return JSON.parse(text, (_key, value, context) => {
    const source = context?.source;
    return typeof value === "number" && source !== undefined && String(value) !== source ? new ExactNumber(source) : value;
  });
}

/** The JSON text of a parsed value. */
export function textOf(value, indent) {
  return JSON.stringify(value, null, indent);
}
