/** The time, for what is shown as a span from then to now. */

import { useEffect, useState } from "preact/hooks";

/** Unix time in seconds, renewed every `every_s` seconds while the component is on screen. */
export function useNow(every_s: number): number {
  const [now, setNow] = useState(Date.now() / 1000);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now() / 1000), 1000 * every_s);
    return () => clearInterval(timer);
  }, [every_s]);
  return now;
}
