/** The requests that have ended: a table, on a phone a list of cards. */

import { Component } from "preact";
import type { RequestRow } from "../../api/schema";
import { session } from "../../api/session";
import { duration, moment, t, times } from "../../i18n";
import type { Key } from "../../i18n";
import { Badge } from "../../ui/basics";
import { keyOf } from "./rows";
import type { ColumnName, Order } from "./rows";
import { count, errorOf, finishOf, rate, reasonOf, share, speedTone, toneOf, written } from "./words";

/** Columns in their order, and whether they hold numbers. */
const COLUMNS: Record<ColumnName, boolean> = {
  at: false,
  key: false,
  model: false,
  api: false,
  prompt: true,
  cached: true,
  answer: true,
  first: true,
  rate: true,
  accepted: true,
  speedup: true,
  end: false,
};

/** A server without keys has one caller only. */
export function columns(): ColumnName[] {
  const all = Object.keys(COLUMNS) as ColumnName[];
  return session.value?.open ? all.filter((name) => name !== "key") : all;
}

function title(name: ColumnName): Key {
  return `requests.column_${name}`;
}

interface Props {
  rows: RequestRow[];
  order: Order;
  sort: (order: Order) => void;
  open: (row: RequestRow) => void;
}

export function Table(props: Props) {
  return (
    <>
      <SortChoice order={props.order} sort={props.sort} />
      <div class="table requests">
        <table>
          <thead>
            <tr>
              {columns().map((name) => (
                <Head key={name} name={name} order={props.order} sort={props.sort} />
              ))}
            </tr>
          </thead>
          <tbody>
            {props.rows.map((row) => (
              <Row key={keyOf(row)} row={row} open={props.open} />
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Head(props: { name: ColumnName; order: Order; sort: (order: Order) => void }) {
  const { name, order } = props;
  const mine = order.by === name;
  const numbers = COLUMNS[name];
  return (
    <th
      scope="col"
      class={numbers ? "number" : ""}
      aria-sort={mine ? (order.descending ? "descending" : "ascending") : undefined}
    >
      <button
        type="button"
        title={t(`requests.about_${name}`)}
        onClick={() =>
          props.sort({ by: name, descending: mine ? !order.descending : numbers || name === "at" })
        }
      >
        {t(title(name))}
        <span aria-hidden="true">{mine ? (order.descending ? " ▾" : " ▴") : ""}</span>
      </button>
    </th>
  );
}

/** In place of the headings, where there is no room for them. */
function SortChoice(props: { order: Order; sort: (order: Order) => void }) {
  const { by, descending } = props.order;
  return (
    <div class="sort-choice actions">
      <label>
        {t("requests.sort_by")}{" "}
        <select
          value={by}
          onChange={(event) => props.sort({ by: event.currentTarget.value as ColumnName, descending })}
        >
          {columns().map((name) => (
            <option key={name} value={name}>
              {t(title(name))}
            </option>
          ))}
        </select>
      </label>
      <button type="button" onClick={() => props.sort({ by, descending: !descending })}>
        {t(descending ? "requests.descending" : "requests.ascending")}
      </button>
    </div>
  );
}

interface RowProps {
  row: RequestRow;
  open: (row: RequestRow) => void;
}

/** Drawn anew only for another object, or if a signal that it read has changed: there are hundreds. */
class Row extends Component<RowProps> {
  shouldComponentUpdate(next: RowProps, state: unknown): boolean {
    return next.row !== this.props.row || next.open !== this.props.open || state !== this.state;
  }

  render({ row, open }: RowProps) {
    return (
      <tr onClick={() => open(row)}>
        {columns().map((name) => (
          <td key={name} class={`${name} ${COLUMNS[name] ? "number" : ""}`} data-label={t(title(name))}>
            {this.cell(name, row)}
          </td>
        ))}
      </tr>
    );
  }

  private cell(name: ColumnName, row: RequestRow) {
    switch (name) {
      case "at": // the row opens with the mouse anywhere, with the keyboard here
        return (
          <button type="button" class="opens" aria-haspopup="dialog">
            {moment(row.at)}
          </button>
        );
      case "key":
        return row.key;
      case "model":
        return <span title={row.model ?? undefined}>{row.model?.split("/").pop() ?? "–"}</span>;
      case "api":
        return <span title={row.api}>{row.api}</span>;
      case "prompt":
        return count(row.prompt_tokens);
      case "cached":
        return count(row.cached_tokens);
      case "answer":
        return row.answers ? count(row.completion_tokens) : "–";
      case "first":
        return written(row.first_token_ms, duration);
      case "rate":
        return rate(row.tokens_per_s);
      case "accepted":
        return share(row.acceptance);
      case "speedup":
        return <span class={speedTone(row.speedup)}>{written(row.speedup, times)}</span>;
      case "end":
        return (
          <>
            <Badge tone={toneOf(row)}>{finishOf(row)}</Badge> <Note row={row} />
          </>
        );
    }
  }
}

/** What went wrong, or why nothing was drafted. */
function Note(props: { row: RequestRow }) {
  const { row } = props;
  const text = errorOf(row) ?? reasonOf(row);
  return text === null ? null : <small class={row.error === null ? "dim" : toneOf(row)}>{text}</small>;
}
