/** All views, in the order of the menu. Each is loaded when it is first shown. */

import type { ComponentType } from "preact";
import type { Key } from "../i18n";

export interface View {
  name: string;
  title: Key;
  /** The menu leads back to the place in it that was left. */
  returns?: boolean;
  /** Only the admin can use it. */
  admin?: boolean;
  load: () => Promise<{ default: ComponentType }>;
}

export const VIEWS: readonly View[] = [
  { name: "chat", title: "shell.chat", returns: true, load: () => import("./chat") },
  { name: "overview", title: "shell.overview", load: () => import("./overview") },
  { name: "speculation", title: "shell.speculation", load: () => import("./speculation") },
  { name: "models", title: "shell.models", load: () => import("./models") },
  { name: "requests", title: "shell.requests", load: () => import("./requests") },
  { name: "benchmark", title: "shell.benchmark", load: () => import("./benchmark") },
  { name: "keys", title: "shell.keys", admin: true, load: () => import("./keys") },
  { name: "log", title: "shell.log", admin: true, load: () => import("./log") },
];
