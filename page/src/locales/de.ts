import shell from "./de/shell.json";
import chat from "./de/chat.json";
import overview from "./de/overview.json";
import speculation from "./de/speculation.json";
import drafting from "./de/drafting.json";
import models from "./de/models.json";
import requests from "./de/requests.json";
import benchmark from "./de/benchmark.json";
import keys from "./de/keys.json";
import log from "./de/log.json";

export default { shell, chat, overview, speculation, drafting, models, requests, benchmark, keys, log };
