/** Size of a figure in CSS pixels. */
export interface Size {
  width: number;
  height: number;
}
