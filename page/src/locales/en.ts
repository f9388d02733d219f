import shell from "./en/shell.json";
import chat from "./en/chat.json";
import overview from "./en/overview.json";
import speculation from "./en/speculation.json";
import drafting from "./en/drafting.json";
import models from "./en/models.json";
import requests from "./en/requests.json";
import benchmark from "./en/benchmark.json";
import keys from "./en/keys.json";
import log from "./en/log.json";

export default { shell, chat, overview, speculation, drafting, models, requests, benchmark, keys, log };
