/** What the loaded models take of the memory, as one bar. */

import type { ConfiguredModel, Models } from "../../api/schema";
import { bytes, t } from "../../i18n";
import { Card } from "../../ui/basics";

const COLOURS = ["--line-1", "--line-2", "--line-3", "--line-4", "--drafter-heads", "--drafter-prediction"];

export function Memory(props: { models: Models }) {
  const { budget_bytes, memory_bytes, used_bytes, configured } = props.models;
  const loaded = configured.filter((model) => model.state === "loaded");
  const whole = budget_bytes ?? memory_bytes;
  const said =
    whole === null
      ? bytes(used_bytes)
      : t(budget_bytes === null ? "models.memory_of_machine" : "models.memory_of_budget", {
          used: bytes(used_bytes),
          whole: bytes(whole),
        });
  return (
    <Card title={t("models.memory_title")} actions={<span class="dim">{said}</span>}>
      {whole !== null && (
        <div
          class={`memory ${used_bytes > whole ? "over" : ""}`}
          role="img"
          aria-label={summary(said, loaded)}
        >
          {loaded.map((model, at) => (
            <span
              key={model.name}
              style={{
                width: `${(100 * model.size_bytes) / Math.max(whole, used_bytes, 1)}%`,
                background: colour(at),
              }}
            />
          ))}
        </div>
      )}
      {loaded.length ? (
        <ul class="legend">
          {loaded.map((model, at) => (
            <li key={model.name}>
              <i style={{ background: colour(at) }} aria-hidden="true" />
              <span class="name">{model.name}</span> <span class="dim">{sizes(model)}</span>
            </li>
          ))}
        </ul>
      ) : (
        <p class="dim">{t("models.nothing_loaded")}</p>
      )}
    </Card>
  );
}

/** Its weights, which the budget counts, and what else it may take. */
function sizes(model: ConfiguredModel): string {
  const beside = (model.memory_bytes.kv_cache ?? 0) + (model.memory_bytes.compute ?? 0);
  const weights = bytes(model.size_bytes);
  return beside ? t("models.memory_beside", { weights, beside: bytes(beside) }) : weights;
}

function colour(at: number): string {
  return `var(${COLOURS[at % COLOURS.length]})`;
}

function summary(said: string, loaded: ConfiguredModel[]): string {
  return [said, ...loaded.map((model) => `${model.name}: ${bytes(model.size_bytes)}`)].join("; ");
}
