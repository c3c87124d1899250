/** What jsdom has not: a canvas (drawing is tested against a recording context) and modal dialogs. */
HTMLCanvasElement.prototype.getContext = () => null;
HTMLDialogElement.prototype.showModal ??= function (this: HTMLDialogElement) {
  this.open = true;
};
HTMLDialogElement.prototype.close ??= function (this: HTMLDialogElement) {
  this.open = false;
  this.dispatchEvent(new Event("close"));
};
