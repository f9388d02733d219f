/** Everything about the models that there are, and that there could be. */

import { useEffect, useState } from "preact/hooks";
import { useTopic } from "../../api/live";
import { isAdmin, session } from "../../api/session";
import type { Models } from "../../api/schema";
import { t } from "../../i18n";
import { Card, Loading, Problem } from "../../ui/basics";
import { HubSearch } from "./hub";
import { Images } from "./images";
import { Memory } from "./memory";
import { PullList } from "./pulls";
import { Served } from "./served";
import { models, refreshModels, refreshPulls } from "./state";
import { Stored } from "./stored";

export function ModelList() {
  const [error, setError] = useState<unknown>(null);
  const refresh = () =>
    void Promise.all([refreshModels(), isAdmin() && refreshPulls()]).then(() => setError(null), setError);
  useEffect(refresh, []);
  const unread = useTopic<Models>("models", (data) => (models.value = data));
  const found = models.value;
  return (
    <>
      <div class="view-head">
        <h1>{t("shell.models")}</h1>
      </div>
      {error !== null && <Problem error={error} retry={refresh} />}
      {error === null && unread && <Problem error={unread} />}
      {!found && error === null && <Loading />}
      {found && <ReadOnly />}
      <FileError />
      {found && found.configured.length === 0 && (
        <Card title={t("models.welcome")} class="welcome">
          <p>{t("models.welcome_text")}</p>
        </Card>
      )}
      {found && found.configured.length > 0 && (
        <>
          <Memory models={found} />
          <Served models={found.configured} />
        </>
      )}
      {isAdmin() && <PullList />}
      {found && isAdmin() && <HubSearch suggest={found.configured.length === 0} />}
      {found && isAdmin() && <Stored models={found} />}
      {found && isAdmin() && <Images />}
    </>
  );
}

/** What is wrong with the settings file, if it was broken by hand. */
export function FileError() {
  const said = models.value?.file_error;
  if (!said) return null;
  return (
    <div class="problem" role="alert">
      <p>{t("models.file_error")}</p>
      <pre class="reason">{said}</pre>
    </div>
  );
}

/** Why nothing can be changed here, for readers who are not the admin. */
export function ReadOnly() {
  if (isAdmin()) return null;
  return (
    <p class="hint">
      {t(session.value?.admin_key ? "models.read_only_key" : "models.read_only_no_key")}{" "}
      {!session.value?.admin_key && <code>foredraft keys admin</code>}
    </p>
  );
}
