/** What to do with a server of which nothing has been asked yet. */

import { session } from "../../api/session";
import { t } from "../../i18n";
import { href } from "../../route";
import { Card, CopyButton } from "../../ui/basics";

export function Welcome(props: { models: string[] }) {
  if (!props.models.length) {
    return (
      <Card title={t("overview.no_model")} class="welcome">
        <p>{t("overview.no_model_note")}</p>
        <p>
          <a class="button primary" href={href("models")}>
            {t("overview.get_model")}
          </a>
        </p>
      </Card>
    );
  }
  const command = example(props.models[0]!);
  return (
    <Card title={t("overview.welcome")} class="welcome">
      <p>{t("overview.welcome_note")}</p>
      <p class="actions">
        <a class="button primary" href={href("chat")}>
          {t("overview.open_chat")}
        </a>
        <a class="button" href={href("benchmark")}>
          {t("overview.open_benchmark")}
        </a>
        <a class="button" href={href("models")}>
          {t("overview.open_models")}
        </a>
      </p>
      <div class="card-head">
        <h3>{t("overview.from_program")}</h3>
        <CopyButton text={() => command} />
      </div>
      <pre tabIndex={0}>{command}</pre>
    </Card>
  );
}

/** A first request, as a command for a shell. */
function example(model: string): string {
  const body = { model, messages: [{ role: "user", content: "Count to twenty, twice." }], temperature: 0 };
  const address = new URL("v1/chat/completions", document.baseURI);
  const key = session.value?.open ? "" : " -H 'Authorization: Bearer KEY'";
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  return `curl ${address.href.split("#")[0]} -H 'Content-Type: application/json'${key} -d '${quoted}'`;
}
