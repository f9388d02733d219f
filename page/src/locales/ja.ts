import shell from "./ja/shell.json";
import chat from "./ja/chat.json";
import overview from "./ja/overview.json";
import speculation from "./ja/speculation.json";
import drafting from "./ja/drafting.json";
import models from "./ja/models.json";
import requests from "./ja/requests.json";
import benchmark from "./ja/benchmark.json";
import keys from "./ja/keys.json";
import log from "./ja/log.json";

export default { shell, chat, overview, speculation, drafting, models, requests, benchmark, keys, log };
