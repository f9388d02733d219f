/** A part that is opened by a click, and stays as it was left, also after a reload. */

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { forGood } from "../kept";

/** Its content is made only while it is open. */
export function Remembered(props: { name: string; title: string; children: () => ComponentChildren }) {
  const key = `foredraft-open-${props.name}`;
  const [open, setOpen] = useState(forGood.get(key) === "yes");
  return (
    <details
      open={open}
      onToggle={(event) => {
        setOpen(event.currentTarget.open);
        forGood.set(key, event.currentTarget.open ? "yes" : "no");
      }}
    >
      <summary>{props.title}</summary>
      {open && props.children()}
    </details>
  );
}
