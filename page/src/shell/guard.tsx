/** Keeps the page when a view fails: the reader sees what happened, and can go elsewhere. */

import { Component } from "preact";
import type { ComponentChildren } from "preact";
import { Problem } from "../ui/basics";

interface Props {
  /** Where the reader is; another place is tried anew. */
  place: string;
  children: ComponentChildren;
}

export class Guard extends Component<Props, { failed: { error: unknown } | null }> {
  override state = { failed: null };

  static override getDerivedStateFromError(error: unknown): object {
    return { failed: { error } };
  }

  override componentDidCatch(error: unknown): void {
    reportError(error);
  }

  override componentDidUpdate(before: Props): void {
    if (before.place !== this.props.place && this.state.failed !== null) this.setState({ failed: null });
  }

  override render({ children }: Props, { failed }: { failed: { error: unknown } | null }) {
    if (failed === null) return children;
    return <Problem error={failed.error} retry={() => this.setState({ failed: null })} />;
  }
}
