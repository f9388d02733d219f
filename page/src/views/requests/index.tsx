/** Requests: what runs, and the last ones that have ended. */

import { useCallback, useMemo, useRef, useState } from "preact/hooks";
import { useTopic } from "../../api/live";
import type { RequestRow, Requests } from "../../api/schema";
import { isAdmin, loadSession, session } from "../../api/session";
import { t, moment } from "../../i18n";
import { href, query, setQuery } from "../../route";
import { Card, Loading, Problem } from "../../ui/basics";
import { Details } from "./details";
import { Filters, asked } from "./filters";
import { RecordButton, RecordingWarning } from "./recording";
import { keyOf, matches, merged, orderOf, orderText, sorted } from "./rows";
import type { Order } from "./rows";
import { Running } from "./running";
import "./style.css";
import { Table } from "./table";

export default function View() {
  const [sent, setSent] = useState<Requests | null>(null);
  const finished = useRef<RequestRow[]>([]);
  const [opened, setOpened] = useState<RequestRow | null>(null);
  const open = useCallback((row: RequestRow) => setOpened(row), []);
  const unread = useTopic<Requests>("requests", (news) => {
    // Switched in another tab; if asking fails, the next news ask again.
    if (news.recording !== session.value?.recording) loadSession().catch(() => undefined);
    finished.current = merged(finished.current, news);
    setSent({ ...news, finished: finished.current });
  });
  const all = sent ? [...sent.running, ...sent.finished] : [];
  const shown = opened && (all.find((row) => keyOf(row) === keyOf(opened)) ?? opened);
  return (
    <>
      <div class="view-head">
        <h1>{t("shell.requests")}</h1>
        {isAdmin() && sent && !sent.recording && <RecordButton />}
      </div>
      {sent?.recording && <RecordingWarning />}
      {unread && <Problem error={unread} />}
      {sent ? <Lists sent={sent} open={open} /> : !unread && <Loading />}
      {shown && <Details row={shown} close={() => setOpened(null)} />}
    </>
  );
}

function Lists(props: { sent: Requests; open: (row: RequestRow) => void }) {
  const { running, finished } = props.sent;
  const filter = asked();
  const order = orderOf(query.value.get("sort"));
  const rows = useMemo(
    () =>
      sorted(
        finished.filter((row) => matches(row, filter)),
        order,
      ),
    [finished, query.value.toString()],
  );
  const runs = running.filter((row) => matches(row, filter));
  const sort = (order: Order) => setQuery({ sort: orderText(order) === "-at" ? "" : orderText(order) });
  return (
    <>
      <Running rows={runs} open={props.open} />
      <Card title={t("requests.ended")}>
        <Filters rows={[...running, ...finished]} shown={runs.length + rows.length} />
        {rows.length ? (
          <Table rows={rows} order={order} sort={sort} open={props.open} />
        ) : finished.length ? (
          <p class="dim">{t("requests.no_match")}</p>
        ) : running.length ? (
          <p class="dim">{t("requests.none_ended")}</p>
        ) : (
          <p class="dim">
            {t("requests.none", { since: moment(session.value?.started ?? 0) })}{" "}
            <a href={href("chat")}>{t("requests.to_chat")}</a>
          </p>
        )}
      </Card>
    </>
  );
}
