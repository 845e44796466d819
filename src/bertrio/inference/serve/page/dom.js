// Finds and makes elements of a page. Texts are put in as text, never as markup.
"use strict";

const at = (id) => document.getElementById(id);

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
