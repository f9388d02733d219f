/** What is attached: texts as their names, pictures as small pictures. */

import { useEffect, useState } from "preact/hooks";
import { bytes, t } from "../../i18n";
import { IconButton } from "./icons";
import type { Attachment } from "./types";

/** What goes with the next message, to be changed. */
export function Chips(props: { files: Attachment[]; change: (files: Attachment[]) => void }) {
  const { files } = props;
  return (
    <ul class="chips" aria-label={t("chat.files")}>
      {files.map((file, place) => (
        <li key={place} class="chip">
          {file.picture && <Picture file={file} />}
          <Name file={file} />
          {!file.picture && (
            <EditChoice
              edit={file.edit}
              choose={(edit) => props.change(files.map((one, at) => (at === place ? { ...one, edit } : one)))}
            />
          )}
          <IconButton
            icon="close"
            label={t("chat.detach", { name: file.name })}
            onClick={() => props.change(files.filter((_, at) => at !== place))}
          />
        </li>
      ))}
      {files.some((file) => !file.picture) && <li class="dim chip-note">{t("chat.edit_file_note")}</li>}
    </ul>
  );
}

function EditChoice(props: { edit: boolean; choose: (edit: boolean) => void }) {
  return (
    <label title={t("chat.edit_file_note")}>
      <input
        type="checkbox"
        checked={props.edit}
        onChange={(event) => props.choose(event.currentTarget.checked)}
      />{" "}
      {t("chat.edit_file")}
    </label>
  );
}

/** What went with a message. */
export function Sent(props: { files: readonly Attachment[] }) {
  return (
    <>
      {props.files.map((file, place) =>
        file.picture ? (
          <Picture key={place} file={file} />
        ) : (
          <span key={place} class="chip">
            <Name file={file} />
            {file.edit && <span class="dim">{t("chat.predicted")}</span>}
            {file.dropped && <span class="dim">{t("chat.picture_dropped")}</span>}
          </span>
        ),
      )}
    </>
  );
}

function Name(props: { file: Attachment }) {
  return (
    <>
      <span class="name">{props.file.name}</span> <span class="dim">{bytes(props.file.bytes)}</span>
    </>
  );
}

function Picture(props: { file: Attachment }) {
  const { name, picture } = props.file;
  const [address, setAddress] = useState("");
  useEffect(() => {
    if (!picture) return undefined;
    const made = URL.createObjectURL(picture);
    setAddress(made);
    return () => URL.revokeObjectURL(made);
  }, [picture]);
  return address ? <img class="picture" src={address} alt={name} title={name} /> : null;
}
