/** A picture that is read place by place: by pointing at it, or with the arrow keys once it has the focus. */

import type { ComponentChildren, RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

interface Props {
  label: string;
  width: number;
  height: number;
  /** How many places there are, and which is picked; null if none is. */
  count: number;
  place: number | null;
  /** What the picked place says; read by screen readers. */
  said: string;
  /** The place at a distance from the left edge, in pixels. */
  placeAt: (x: number) => number | null;
  pick: (place: number | null) => void;
  children: ComponentChildren;
}

export function Scrubbed(props: Props) {
  const last = props.count - 1;
  const at = props.place ?? last;
  const steps: Record<string, number> = {
    ArrowLeft: Math.max(0, at - 1),
    ArrowDown: Math.max(0, at - 1),
    ArrowRight: Math.min(last, at + 1),
    ArrowUp: Math.min(last, at + 1),
    PageDown: Math.max(0, at - 10),
    PageUp: Math.min(last, at + 10),
    Home: 0,
    End: last,
  };
  return (
    <svg
      class="scrubbed"
      width={props.width}
      height={props.height}
      viewBox={`0 0 ${props.width} ${props.height}`}
      role="slider"
      tabIndex={0}
      aria-label={props.label}
      aria-valuemin={0}
      aria-valuemax={Math.max(0, last)}
      aria-valuenow={Math.max(0, at)}
      aria-valuetext={props.said}
      onKeyDown={(event) => {
        const to = steps[event.key];
        if (to === undefined || props.count === 0) return;
        event.preventDefault();
        props.pick(to);
      }}
      onPointerMove={(event) => {
        const box = event.currentTarget.getBoundingClientRect();
        props.pick(props.placeAt(((event.clientX - box.left) / box.width) * props.width));
      }}
      onPointerLeave={() => props.pick(null)}
      onBlur={() => props.pick(null)}
    >
      {props.children}
    </svg>
  );
}

/** The width of an element in pixels, as it changes; `first` until it is known. */
export function useWidth<E extends HTMLElement>(first = 600): [RefObject<E | null>, number] {
  const element = useRef<E>(null);
  const [width, setWidth] = useState(first);
  useEffect(() => {
    const place = element.current;
    if (place === null) return undefined;
    const watcher = new ResizeObserver(() => setWidth(Math.max(200, Math.floor(place.clientWidth))));
    watcher.observe(place);
    return () => watcher.disconnect();
  }, []);
  return [element, width];
}
