/** What is loaded, how much memory it takes, and whether speculation leaves its texts as they are. */

import type { ConfiguredModel } from "../../api/schema";
import { bytes, t } from "../../i18n";
import { href } from "../../route";
import { Badge, Card } from "../../ui/basics";

export function Loaded(props: { models: ConfiguredModel[] }) {
  const shown = props.models.filter((model) => model.state !== "unloaded");
  const others = props.models.length - shown.length;
  return (
    <Card title={t("overview.loaded")} actions={<a href={href("models")}>{t("overview.all_models")}</a>}>
      {!shown.length && <p class="dim">{t("overview.none_loaded")}</p>}
      <ul class="loaded">
        {shown.map((model) => (
          <Row key={model.name} model={model} />
        ))}
      </ul>
      {others > 0 && shown.length > 0 && <p class="dim">{t("overview.others", { count: others })}</p>}
    </Card>
  );
}

function Row(props: { model: ConfiguredModel }) {
  const { name, state, error, exact, exact_reason: why } = props.model;
  return (
    <li>
      <p class="about">
        <a href={href("models", name)}>{name}</a>
        {state === "loading" && <Badge>{t("overview.loading")}</Badge>}
        {state === "failed" && <Badge tone="bad">{t("overview.load_failed")}</Badge>}
        {exact !== null && (
          <Badge tone={exact ? "good" : "warn"}>{t(exact ? "overview.exact" : "overview.inexact")}</Badge>
        )}
        {state === "loaded" && <span class="dim">{facts(props.model)}</span>}
      </p>
      {error !== null && (
        <p class="bad why" lang="en">
          {error}
        </p>
      )}
      {exact !== null && (
        <p class="dim why">
          {t(exact ? "overview.exact_why" : "overview.inexact_why")} <span lang="en">{why}</span>
        </p>
      )}
    </li>
  );
}

function facts(model: ConfiguredModel): string {
  return [
    model.quantization,
    bytes(model.size_bytes),
    t("overview.speculation", { configured: stages(model.speculate) }),
    model.draft_model && t("overview.draft_model", { name: fileName(model.draft_model) }),
  ]
    .filter(Boolean)
    .join(" · ");
}

/** The names in a speculation string, without their options. */
function stages(configured: string): string {
  return configured
    .split(";")
    .map((stage) => stage.split(":")[0])
    .join(" + ");
}

function fileName(path: string): string {
  return path.split("/").at(-1) ?? path;
}
