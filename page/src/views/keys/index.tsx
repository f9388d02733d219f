/** API keys: make them, limit them, see their use, revoke them. */

import { useEffect, useState } from "preact/hooks";
import { t } from "../../i18n";
import { Badge, Loading, Problem } from "../../ui/basics";
import { focusFirst } from "../../ui/focus";
import { Made } from "./made";
import { NewKeyForm } from "./new_key";
import { isOpen, keys, loadKeys, made } from "./state";
import { KeyTable } from "./table";
import "./style.css";

const EVERY_MS = 5000;

export default function View() {
  const [error, setError] = useState<unknown>(null);
  const [making, setMaking] = useState(false);
  const load = () => void loadKeys().then(() => setError(null), setError);
  useEffect(() => {
    load();
    const timer = setInterval(() => document.hidden || load(), EVERY_MS);
    return () => clearInterval(timer);
  }, []);
  const known = keys.value;
  return (
    <>
      <div class="view-head">
        <h1>{t("shell.keys")}</h1>
        {known?.admin_key && <Badge>{t("keys.has_admin_key")}</Badge>}
        {known && !making && (
          <button type="button" class="primary" onClick={() => setMaking(true)}>
            {t("keys.new")}
          </button>
        )}
      </div>
      {error !== null && <Problem error={error} retry={load} />}
      {!known && error === null && <Loading />}
      {made.value && <Made made={made.value} />}
      {making && <NewKeyForm close={() => (setMaking(false), focusFirst(".view-head button"))} />}
      {known && isOpen() && !making && (
        <p class="problem open">{t(known.admin_key ? "keys.open_but" : "keys.open")}</p>
      )}
      {known && known.keys.length > 0 && <KeyTable rows={known.keys} />}
    </>
  );
}
