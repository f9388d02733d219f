import shell from "./ko/shell.json";
import chat from "./ko/chat.json";
import overview from "./ko/overview.json";
import speculation from "./ko/speculation.json";
import drafting from "./ko/drafting.json";
import models from "./ko/models.json";
import requests from "./ko/requests.json";
import benchmark from "./ko/benchmark.json";
import keys from "./ko/keys.json";
import log from "./ko/log.json";

export default { shell, chat, overview, speculation, drafting, models, requests, benchmark, keys, log };
