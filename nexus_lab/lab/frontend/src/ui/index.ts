export { useAction, type Action } from "./action";
export { Canvas, useWidth } from "./canvas";
export { Box } from "./box";
export { Button, Check, Field, NumberField, Segmented, Select, TextField, type Option } from "./controls";
export { Dialog } from "./dialog";
export { JsonText, Legend, Meter, OP_LETTERS, OP_WORDS, Progress, ScoreBar } from "./marks";
export { DeclineNote, Empty, Note, Problem, StatusMark } from "./status";
export { Table, VIRTUAL_FROM, type Column } from "./table";
