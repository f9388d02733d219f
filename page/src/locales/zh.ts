import shell from "./zh/shell.json";
import chat from "./zh/chat.json";
import overview from "./zh/overview.json";
import speculation from "./zh/speculation.json";
import drafting from "./zh/drafting.json";
import models from "./zh/models.json";
import requests from "./zh/requests.json";
import benchmark from "./zh/benchmark.json";
import keys from "./zh/keys.json";
import log from "./zh/log.json";

export default { shell, chat, overview, speculation, drafting, models, requests, benchmark, keys, log };
