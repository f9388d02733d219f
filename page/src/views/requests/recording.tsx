/** Whether texts of requests are kept: the switch, what it means, and a warning while it is on. */

import { useState } from "preact/hooks";
import { call } from "../../api/http";
import type { Recording } from "../../api/schema";
import { isAdmin, loadSession } from "../../api/session";
import { t } from "../../i18n";
import { Dialog, Problem } from "../../ui/basics";

async function record(on: boolean): Promise<void> {
  const body: Recording = { on };
  await call("console/recording", { method: "PUT", body });
  await loadSession(); // the frame says it, too
}

/** For the administrator, while nothing is recorded. */
export function RecordButton() {
  const [asked, setAsked] = useState(false);
  const [error, setError] = useState<unknown>(null);
  async function start(): Promise<void> {
    try {
      await record(true);
      setAsked(false);
    } catch (failed) {
      setError(failed);
    }
  }
  return (
    <>
      <button type="button" onClick={() => (setError(null), setAsked(true))}>
        {t("requests.record")}
      </button>
      {asked && (
        <Dialog title={t("requests.record_title")} close={() => setAsked(false)}>
          <p>{t("requests.record_what")}</p>
          <ul class="record-means">
            <li>{t("requests.record_who")}</li>
            <li>{t("requests.record_where")}</li>
            <li>{t("requests.record_end")}</li>
          </ul>
          <p class="dim">{t("requests.record_people")}</p>
          {error !== null && <Problem error={error} />}
          <div class="actions">
            <button type="button" class="primary" onClick={() => void start()}>
              {t("requests.record_start")}
            </button>
            <button type="button" onClick={() => setAsked(false)}>
              {t("shell.cancel")}
            </button>
          </div>
        </Dialog>
      )}
    </>
  );
}

/** While texts are recorded, for all users whose texts they may be. */
export function RecordingWarning() {
  const [error, setError] = useState<unknown>(null);
  return (
    <div class="recording-warning" role="status">
      <p>{t(isAdmin() ? "requests.recording_admin" : "requests.recording_others")}</p>
      {isAdmin() && (
        <button type="button" onClick={() => void record(false).then(() => setError(null), setError)}>
          {t("requests.record_stop")}
        </button>
      )}
      {error !== null && <Problem error={error} />}
    </div>
  );
}
