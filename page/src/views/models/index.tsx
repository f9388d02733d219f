/** The view Models: the list, or the settings of the model that the address names. */

import { route } from "../../route";
import { ModelList } from "./list";
import "./models.css";
import { SettingsView } from "./settings";

export default function View() {
  const name = route.value[1];
  return name ? <SettingsView key={name} name={name} /> : <ModelList />;
}
