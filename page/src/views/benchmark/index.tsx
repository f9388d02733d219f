/** Benchmark: auto against off on this server, and the reports that are kept. */

import { useState } from "preact/hooks";
import { useTopic } from "../../api/live";
import type { Benchmark, Benchmarks } from "../../api/schema";
import { isAdmin } from "../../api/session";
import { t } from "../../i18n";
import { goTo, route } from "../../route";
import { Card, Loading, Problem } from "../../ui/basics";
import { Kept } from "./kept";
import { Report } from "./report";
import { Start } from "./start";
import "./style.css";

/** The reports with those that are new, the newest first. */
function withNew(known: Benchmark[] | null, found: Benchmark[]): Benchmark[] {
  const kept = (known ?? []).filter((report) => found.every((other) => other.id !== report.id));
  return [...found, ...kept].sort((left, right) => right.at - left.at);
}

function joined(known: Benchmark[] | null, sent: Benchmarks): Benchmark[] {
  return sent.whole ? sent.benchmarks : withNew(known, sent.benchmarks);
}

export default function View() {
  const [reports, setReports] = useState<Benchmark[] | null>(null);
  const unread = useTopic<Benchmarks>("benchmarks", (sent) => setReports((known) => joined(known, sent)));
  const chosen = route.value[1];
  const shown = reports?.find((report) => report.id === chosen) ?? reports?.[0];
  function started(report: Benchmark): void {
    setReports((known) => withNew(known, [report]));
    goTo("benchmark", report.id);
  }
  return (
    <>
      <div class="view-head">
        <h1>{t("shell.benchmark")}</h1>
      </div>
      {isAdmin() ? (
        <Start busy={reports?.some((report) => report.state === "running") ?? false} started={started} />
      ) : (
        <Card>
          <p class="dim">{`${t("benchmark.what")} ${t("shell.read_only")}`}</p>
        </Card>
      )}
      {shown && <Report key={shown.id} report={shown} />}
      {reports && shown && <Kept reports={reports} shown={shown} />}
      {unread && <Problem error={unread} />}
      {reports === null && !unread && <Loading />}
      {reports?.length === 0 && <p class="dim">{t("benchmark.none")}</p>}
    </>
  );
}
