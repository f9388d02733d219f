import { render } from "preact";
import { startLive } from "./api/live";
import { chooseLanguage, preferred } from "./i18n";
import { Shell } from "./shell/shell";
import "./style.css";
import { startTheme } from "./ui/theme";

startTheme();
await chooseLanguage(preferred(), false).catch(() => undefined); // in English, then
startLive();
const place = document.getElementById("app");
if (place) render(<Shell />, place);
