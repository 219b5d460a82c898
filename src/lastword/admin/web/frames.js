// The view at one frame of a run. The engine's frames are applied one by one to the picture from before the run, so that
// stepping back works like stepping forward. Nothing is decided here: the frames say which records win, go and stay.

/** The segments, marks, state and text at frame `index` of a run; -1 is before the first. */
export function at(run, index) {
  const frames = run.frames.slice(0, index + 1);
  const frame = frames.at(-1) ?? null;
  if (frame && (frame.phase === "commit" || frame.phase === "later")) return settled(run.after, frame);
  const view = { ...settled(run.before, frame), marks: new Map(), keysSeen: frame?.keys_seen ?? null };
  for (const each of frames) apply(each, view);
  return view;
}

/** A picture without marks. */
export function settled(picture, frame = null) {
  return {
    segments: picture.segments.map((each) => ({ ...each, id: each.file })),
    marks: new Map(),
    state: picture.state,
    frame,
    current: frame?.offset ?? null,
    keysSeen: null,
    picture,
  };
}

function apply(frame, view) {
  if (frame.phase === "seal") {
    for (const segment of view.segments) if (segment.file === frame.file) segment.kind = "sealed dirty";
  } else if (frame.phase === "find" && frame.offset !== undefined) {
    view.marks.set(frame.offset, frame.line === "find.no_key" ? "alone" : frame.wins ? "wins" : "beaten");
    if (frame.overtakes !== null && frame.overtakes !== undefined) view.marks.set(frame.overtakes, "beaten");
  } else if (frame.phase === "decide") {
    view.marks.set(frame.offset, frame.goes ? "goes" : "stays");
  } else if (frame.phase === "rewrite") rewrite(frame, view);
}

/** Move the records that stay to the new segment, and remove those that go. */
function rewrite(frame, view) {
  if (frame.line === "rewrite.as_it_is") {
    for (const segment of view.segments) if (segment.file === frame.file) segment.kept = true;
    return;
  }
  const staying = new Set(frame.new?.offsets ?? []);
  const last = staying.size ? Math.max(...staying) : Infinity;
  const moved = [];
  for (const segment of view.segments) {
    if (segment.kept || segment.fresh) continue;
    const left = [];
    for (const record of segment.records) {
      if (staying.has(record.offset)) moved.push(record);
      else if (record.offset > last || !record.goes) left.push(record);
    }
    segment.records = left;
  }
  const place = view.segments.findIndex((each) => !each.kept && !each.fresh && !each.records.length);
  if (frame.new) view.segments.splice(Math.max(0, place), 0, { id: frame.new.file, file: frame.new.file, kind: "being written", records: moved, fresh: true });
  view.segments = view.segments.filter((each) => each.records.length);
}
