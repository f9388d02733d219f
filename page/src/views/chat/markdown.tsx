/** Markdown as elements: every text is set as a text, and no markup comes from it. */

import type { Token, Tokens } from "marked";
import type { ComponentChildren } from "preact";
import { useMemo, useRef } from "preact/hooks";
import { t } from "../../i18n";
import { CopyButton } from "../../ui/basics";
import { GrowingBlocks, lexed } from "./lexer";

const DEEPEST = 30;

/** A text in Markdown. `growing`: more of it comes. */
export function Markdown(props: { text: string; growing: boolean }) {
  const reader = useRef(new GrowingBlocks());
  const blocks = useMemo(
    () => (props.growing ? reader.current.blocks(props.text) : lexed(props.text)),
    [props.text, props.growing],
  );
  if (blocks === null) return <div class="plain">{props.text}</div>;
  // Where a link's address stands below it, the whole text is rendered anew when it is there.
  const resolved = !props.growing && blocks.some((token) => token.type === "def");
  return (
    <div key={String(resolved)} class="markdown">
      {blocks.map((token, place) => block(token, place, 0))}
    </div>
  );
}

function block(token: Token, place: number, depth: number) {
  return token.type === "space" || token.type === "def" ? null : (
    <Block key={place} token={token} depth={depth} />
  );
}

/** A block. One whose text is the same as before is not rendered anew. */
function Block(props: { token: Token; depth: number }) {
  const { token, depth } = props;
  return useMemo(
    () => (depth > DEEPEST ? <p>{token.raw}</p> : rendered(token, depth)),
    [token.raw, token.type],
  );
}

function rendered(token: Token, depth: number): ComponentChildren {
  switch (token.type) {
    case "heading": {
      // The page's own heading is above those of an answer.
      const Level = `h${Math.min(6, (token as Tokens.Heading).depth + 1)}` as "h2";
      return <Level>{inline(token.tokens, depth)}</Level>;
    }
    case "paragraph":
      return <p>{inline(token.tokens, depth)}</p>;
    case "text":
      return token.tokens ? <span>{inline(token.tokens, depth)}</span> : decoded((token as Tokens.Text).text);
    case "code":
      return <CodeBlock code={(token as Tokens.Code).text} language={(token as Tokens.Code).lang ?? ""} />;
    case "blockquote":
      return <blockquote>{token.tokens?.map((one, place) => block(one, place, depth + 1))}</blockquote>;
    case "list":
      return list(token as Tokens.List, depth);
    case "table":
      return table(token as Tokens.Table, depth);
    case "hr":
      return <hr />;
    default:
      return <p>{token.raw}</p>;
  }
}

function list(token: Tokens.List, depth: number) {
  const items = token.items.map((item, place) => <Item key={place} item={item} depth={depth + 1} />);
  return token.ordered ? <ol start={Number(token.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function Item(props: { item: Tokens.ListItem; depth: number }) {
  const { item, depth } = props;
  return useMemo(
    () => (
      <li class={item.task ? "task" : undefined}>
        {item.task && <input type="checkbox" checked={item.checked} disabled aria-label={item.text} />}
        {item.tokens.filter((one) => one.type !== "checkbox").map((one, place) => block(one, place, depth))}
      </li>
    ),
    [item.raw, item.loose],
  );
}

function table(token: Tokens.Table, depth: number) {
  const cell = (one: Tokens.TableCell, place: number) => {
    const Tag = one.header ? "th" : "td";
    return (
      <Tag key={place} class={one.align ?? undefined}>
        {inline(one.tokens, depth)}
      </Tag>
    );
  };
  return (
    <div class="table" role="region" tabIndex={0} aria-label={t("chat.table")}>
      <table>
        <thead>
          <tr>{token.header.map(cell)}</tr>
        </thead>
        <tbody>
          {token.rows.map((row, place) => (
            <tr key={place}>{row.map(cell)}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function CodeBlock(props: { code: string; language: string }) {
  const language = props.language.split(/\s/)[0] ?? "";
  return (
    <figure class="code">
      <figcaption>
        <span>{language || t("chat.code")}</span>
        <CopyButton text={() => props.code} />
      </figcaption>
      <pre tabIndex={0}>
        <code>{props.code}</code>
      </pre>
    </figure>
  );
}

function inline(tokens: Token[] | undefined, depth: number): ComponentChildren {
  return tokens?.map((token) => (depth > DEEPEST ? token.raw : span(token, depth + 1)));
}

function span(token: Token, depth: number): ComponentChildren {
  switch (token.type) {
    case "strong":
      return <strong>{inline(token.tokens, depth)}</strong>;
    case "em":
      return <em>{inline(token.tokens, depth)}</em>;
    case "del":
      return <del>{inline(token.tokens, depth)}</del>;
    case "codespan":
      return <code>{(token as Tokens.Codespan).text}</code>;
    case "br":
      return <br />;
    case "link":
      return link(token as Tokens.Link, inline(token.tokens, depth));
    case "image": // nothing is fetched from elsewhere
      return link(token as Tokens.Image, (token as Tokens.Image).text || (token as Tokens.Image).href);
    case "escape":
      return (token as Tokens.Escape).text;
    case "text":
      return token.tokens ? inline(token.tokens, depth) : decoded((token as Tokens.Text).text);
    default:
      return token.raw;
  }
}

/** A link to a web page or an address for mail; any other is shown as it was written. */
function link(token: Tokens.Link | Tokens.Image, children: ComponentChildren) {
  const to = safe(token.href);
  return to === null ? (
    token.raw
  ) : (
    <a href={to} target="_blank" rel="noopener noreferrer" title={token.title ?? to}>
      {children}
    </a>
  );
}

const SCHEMES = new Set(["http:", "https:", "mailto:"]);

function safe(href: string): string | null {
  try {
    const url = new URL(href); // one without a scheme would lead to this server
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const NAMED: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

/** The characters that a text names: marked leaves `&lt;` to the markup that is not made here. */
function decoded(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(
    /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]{2,4}));/g,
    (whole, ten, sixteen, name) => {
      if (name) return NAMED[name as string] ?? whole;
      const code = ten ? Number(ten) : parseInt(sixteen as string, 16);
      return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
    },
  );
}
