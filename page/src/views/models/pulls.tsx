/** Downloads: what runs, and how the others ended. The server keeps them, so that they outlive the page. */

import { useTopic } from "../../api/live";
import type { Pull, Pulls } from "../../api/schema";
import { bytes, percent, t } from "../../i18n";
import { href } from "../../route";
import { Badge, Bar, Card, Problem } from "../../ui/basics";
import { useActions } from "./acting";
import { span } from "./format";
import { cancelPull, forgetPull, pulls, resumePull } from "./state";

const TONES = { running: undefined, done: "good", failed: "bad", cancelled: "warn" } as const;

/** For the admin: others may not know of them. */
export function PullList() {
  const unread = useTopic<Pulls>("pulls", (data) => (pulls.value = data));
  if (unread) return <Problem error={unread} />;
  const found = pulls.value?.pulls ?? [];
  if (!found.length) return null;
  return (
    <Card title={t("models.pulls")}>
      <ul class="rows">
        {found.map((pull) => (
          <Row key={pull.id} pull={pull} />
        ))}
      </ul>
    </Card>
  );
}

function Row({ pull }: { pull: Pull }) {
  const { error, busy, act } = useActions("data-pull", pull.model);
  const running = pull.state === "running";
  const share = pull.total_bytes ? pull.done_bytes / pull.total_bytes : null;
  return (
    <li class="model-row" data-pull={pull.model}>
      <div class="what">
        <p class="title">
          <span class="name">{pull.model}</span>
          <Badge tone={TONES[pull.state]}>{t(`models.pull_${pull.state}`)}</Badge>
        </p>
        {pull.state !== "done" &&
          (share === null ? (
            pull.state === "running" && (
              <div class="busy-bar" role="progressbar" aria-label={t("models.pull_preparing")} />
            )
          ) : (
            <Bar
              share={share}
              label={t("models.pull_progress", { name: pull.model, share: percent(share) })}
            />
          ))}
        <p class="dim">{progress(pull)}</p>
        {pull.error !== null && pull.state === "failed" && (
          <p class="bad reason" lang="en">
            {pull.error}
          </p>
        )}
        {error !== null && <Problem error={error} />}
      </div>
      <div class="actions">
        {pull.state === "done" && pull.served_as !== null && (
          <>
            <a class="button primary" href={href("chat")}>
              {t("models.to_chat")}
            </a>
            <a class="button" href={href("models", pull.served_as)}>
              {t("models.settings")}
            </a>
          </>
        )}
        {(pull.state === "cancelled" || pull.state === "failed") && (
          <button type="button" aria-disabled={busy} onClick={() => void act(() => resumePull(pull.id))}>
            {t("models.resume")}
          </button>
        )}
        <button
          type="button"
          class={running ? "" : "quiet"}
          aria-disabled={busy}
          onClick={() => void act(() => (running ? cancelPull(pull.id) : forgetPull(pull.id)))}
        >
          {t(running ? "shell.cancel" : "models.dismiss")}
        </button>
      </div>
    </li>
  );
}

/** How far it is, how fast, and how long it still takes. */
function progress(pull: Pull): string {
  const { done_bytes, total_bytes, bytes_per_s } = pull;
  if (pull.state === "running" && total_bytes === null) return t("models.pull_preparing");
  const left = pull.state === "running" && bytes_per_s && total_bytes ? total_bytes - done_bytes : null;
  return [
    total_bytes === null || pull.state === "done"
      ? bytes(total_bytes ?? done_bytes)
      : t("models.pull_bytes", { done: bytes(done_bytes), total: bytes(total_bytes) }),
    pull.state === "running" && bytes_per_s && t("models.pull_rate", { rate: bytes(bytes_per_s) }),
    left !== null && bytes_per_s && t("models.pull_left", { span: span(left / bytes_per_s) }),
    pull.state === "done" && pull.served_as && t("models.served_as", { names: pull.served_as }),
  ]
    .filter(Boolean)
    .join(" · ");
}
