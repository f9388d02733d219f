/** Small pictures on buttons, drawn in lines. */

const PATHS = {
  send: "M12 19V5M5 12l7-7 7 7",
  stop: "M7 7h10v10H7z",
  attach: "M20 11l-8.5 8.5a5 5 0 0 1-7-7L13 4a3.3 3.3 0 0 1 4.7 4.7l-8.5 8.5a1.7 1.7 0 0 1-2.4-2.4L14.5 7",
  race: "M5 21V4h13l-3 4 3 4H5",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  done: "M5 12l5 5 9-10",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M20 12a8 8 0 1 1-2.3-5.7L20 8.5M20 4v4.5h-4.5",
  remove: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  close: "M6 6l12 12M18 6L6 18",
  list: "M4 6h16M4 12h16M4 18h16",
  settings: "M4 7h9M17 7h3M15 5v4M4 17h3M11 17h9M9 15v4",
  down: "M12 5v14M5 12l7 7 7-7",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon(props: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[props.name]} />
    </svg>
  );
}

/** A button with only a picture; its name is read, and shown by the pointer. */
export function IconButton(props: {
  icon: IconName;
  label: string;
  onClick: () => void;
  disabled?: boolean;
  class?: string;
  id?: string;
}) {
  return (
    <button
      type="button"
      id={props.id}
      class={props.class ?? "quiet"}
      aria-label={props.label}
      title={props.label}
      disabled={props.disabled}
      onClick={props.onClick}
    >
      <Icon name={props.icon} />
    </button>
  );
}
