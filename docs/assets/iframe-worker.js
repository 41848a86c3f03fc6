// The search runs in a worker, and browsers start no workers for pages that are opened as files. Then a hidden frame is
// the worker: it loads the same script, and gets and sends its messages as a worker does: as copies, in a later turn.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.onload = () => this.begin(url);
      this.frame.srcdoc = "<!doctype html><title>search</title>";
      document.body.append(this.frame);
    }

    begin(url) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data: structuredClone(data) });
        setTimeout(() => this.onmessage?.(event));
      };
      const script = inside.document.createElement("script");
      script.onload = () => {
        this.inside = inside;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      };
      script.src = new URL(url, location.href).href;
      inside.document.head.append(script);
    }

    postMessage(data) {
      if (this.inside) {
        const { MessageEvent, structuredClone } = this.inside;
        const event = new MessageEvent("message", { data: structuredClone(data) });
        setTimeout(() => this.inside.onmessage(event));
      } else {
        this.waiting.push(data);
      }
    }

    terminate() {
      this.frame.remove();
    }
  };
}
