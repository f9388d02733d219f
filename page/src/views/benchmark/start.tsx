/** Starts a benchmark. */

import { useEffect, useState } from "preact/hooks";
import { ApiError, call } from "../../api/http";
import type { Benchmark, NewBenchmark, Requests } from "../../api/schema";
import { t } from "../../i18n";
import { Card, Dialog, Field, Problem } from "../../ui/basics";

const PROMPTS = { min: 1, max: 48, usual: 8 };
const TOKENS = { min: 16, max: 1024, usual: 128 };

interface ModelList {
  data: { id: string }[];
}

export function Start(props: { busy: boolean; started: (report: Benchmark) => void }) {
  const [models, setModels] = useState<string[]>([]);
  const [model, setModel] = useState("");
  const [prompts, setPrompts] = useState(PROMPTS.usual);
  const [tokens, setTokens] = useState(TOKENS.usual);
  const [others, setOthers] = useState(0);
  const [error, setError] = useState<unknown>(null);
  const [starting, setStarting] = useState(false);
  useEffect(() => {
    call<ModelList>("v1/models").then((list) => setModels(list.data.map(({ id }) => id)), setError);
  }, []);

  /** `anyway`: although other requests run. */
  async function start(anyway: boolean): Promise<void> {
    setStarting(true);
    setError(null);
    setOthers(0);
    try {
      const running = anyway ? 0 : (await call<Requests>("console/requests")).running.length;
      if (running) {
        setOthers(running);
        return;
      }
      const body: NewBenchmark = { model: model || models[0] || null, prompts, tokens };
      props.started(await call<Benchmark>("console/benchmarks", { method: "POST", body }));
    } catch (failed) {
      setError(failed);
    } finally {
      setStarting(false);
    }
  }

  const wrong = error instanceof ApiError ? error.param : null;
  const said = (name: string) => (wrong === name && error instanceof Error ? error.message : null);
  return (
    <Card title={t("benchmark.new")}>
      <p class="dim">{t("benchmark.what")}</p>
      <form
        class="bench-start"
        onSubmit={(event) => {
          event.preventDefault();
          void start(false);
        }}
      >
        <Field label={t("benchmark.model")} error={said("model")}>
          {(attributes) => (
            <select
              {...attributes}
              value={model || models[0]}
              onChange={(event) => setModel(event.currentTarget.value)}
            >
              {models.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          )}
        </Field>
        <Amount
          label={t("benchmark.prompts")}
          note={t("benchmark.prompts_note")}
          {...PROMPTS}
          error={said("prompts")}
          value={prompts}
          set={setPrompts}
        />
        <Amount
          label={t("benchmark.tokens")}
          note={t("benchmark.tokens_note")}
          {...TOKENS}
          error={said("tokens")}
          value={tokens}
          set={setTokens}
        />
        <button class="primary" disabled={props.busy || starting}>
          {t(starting ? "benchmark.starting" : "benchmark.start")}
        </button>
      </form>
      {props.busy && <p class="dim">{t("benchmark.one_at_a_time")}</p>}
      {error !== null && wrong === null && <Problem error={error} />}
      {others > 0 && (
        <Dialog title={t("benchmark.others_title")} close={() => setOthers(0)}>
          <p>{t("benchmark.others", { n: others })}</p>
          <div class="actions">
            <button type="button" class="primary" onClick={() => setOthers(0)}>
              {t("benchmark.wait")}
            </button>
            <button type="button" onClick={() => void start(true)}>
              {t("benchmark.start_anyway")}
            </button>
          </div>
        </Dialog>
      )}
    </Card>
  );
}

function Amount(props: {
  label: string;
  note: string;
  error: string | null;
  min: number;
  max: number;
  value: number;
  set: (value: number) => void;
}) {
  return (
    <Field label={props.label} note={props.note} error={props.error}>
      {(attributes) => (
        <input
          {...attributes}
          type="number"
          required
          min={props.min}
          max={props.max}
          value={props.value}
          onInput={(event) => props.set(event.currentTarget.valueAsNumber)}
        />
      )}
    </Field>
  );
}
