// The events of the monitor.  They are read with fetch and not with EventSource, which can send no token.

const TOKEN = "meshmsg-monitor-token";
const RETRY_MS = 1000, RETRY_MAX_MS = 10000, SILENCE_MS = 15000;

export class Feed {
  // on.event(object), on.state(word, text), on.token(wrong)
  constructor(on) {
    this.on = on;
    this.retry = RETRY_MS;
  }

  async run() {
    for (;;) {
      try {
        if ((await this.follow()) === "token") return;
        this.on.state("lost", "the connection ended");
      } catch (error) {
        this.on.state("lost", error.watched ?? "no answer");
      }
      await new Promise((done) => setTimeout(done, this.retry));
      this.retry = Math.min(RETRY_MAX_MS, 2 * this.retry);
    }
  }

  use(token) {
    sessionStorage.setItem(TOKEN, token);
    this.run();
  }

  async follow() {
    const stop = new AbortController();
    const token = sessionStorage.getItem(TOKEN);
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    let timer = setTimeout(() => stop.abort(), SILENCE_MS);
    try {
      const answer = await fetch("/events", { headers, signal: stop.signal, cache: "no-store" });
      if (answer.status === 401) {
        sessionStorage.removeItem(TOKEN);
        this.on.token(token !== null);
        return "token";
      }
      if (!answer.ok) throw Object.assign(new Error(), { watched: (await answer.text()).trim() });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let text = ""; ; ) {
        const { value, done } = await reader.read();
        if (done) return "";
        clearTimeout(timer);
        timer = setTimeout(() => stop.abort(), SILENCE_MS);
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) {
          this.retry = RETRY_MS;
          if (event.startsWith("data: ")) this.on.event(JSON.parse(event.slice(6)));
        }
      }
    } finally {
      clearTimeout(timer);
      stop.abort();
    }
  }
}
