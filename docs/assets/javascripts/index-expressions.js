/* Index expressions of Python, as kernels write them: whole numbers, names, + - * // % << >> & | ^ ~ and parentheses, with Python's precedence.
 *
 * parse(text, names) -> a function of { name: BigInt } that returns a BigInt. Errors name the place in the text. Nothing of the text is run as JavaScript. */

const LONGEST = 200, DEEPEST = 50, LARGEST_SHIFT = 4096n;
const TOKEN = /\s*(?:(0[xX][0-9a-fA-F]+|\d+)|([A-Za-z_]\w*)|(\/\/|<<|>>|[-+*%&|^~()]))/y;

// From the weakest to the strongest.
const LEVELS = [["|"], ["^"], ["&"], ["<<", ">>"], ["+", "-"], ["*", "//", "%"]];

function floorDivide(one, other) {
  const quotient = one / other;
  return one % other !== 0n && (one < 0n) !== (other < 0n) ? quotient - 1n : quotient;
}

function divisor(other, sign) {
  if (other === 0n) throw new Error(`${sign} 0 divides by zero.`);
  return other;
}

function shiftCount(other) {
  if (other < 0n || other > LARGEST_SHIFT) throw new Error(`A shift by ${other} is not possible: from 0 to ${LARGEST_SHIFT} is.`);
  return other;
}

const BINARY = {
  "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "&": (a, b) => a & b, "|": (a, b) => a | b, "^": (a, b) => a ^ b,
  "<<": (a, b) => a << shiftCount(b), ">>": (a, b) => a >> shiftCount(b),
  "//": (a, b) => floorDivide(a, divisor(b, "//")), "%": (a, b) => a - floorDivide(a, divisor(b, "%")) * b,
};

function tokens(text) {
  const found = [];
  let place = 0;
  while (text.slice(place).trim()) {
    TOKEN.lastIndex = place;
    const match = TOKEN.exec(text), start = place + (/^\s*/.exec(text.slice(place))[0].length);
    if (!match) {
      const hint = text[start] === "/" ? "use // for whole numbers" : "numbers, names, + - * // % << >> & | ^ ~ and parentheses are known";
      throw new Error(`Character ${start + 1}, “${text[start]}”, is not part of an index: ${hint}.`);
    }
    const [whole, number, name, sign] = match;
    place += whole.length;
    if (number && /^0\d/.test(number)) throw new Error(`At character ${start + 1}: a number does not begin with 0.`);
    if ((number && /[\w.]/.test(text[place] ?? ""))) throw new Error(`At character ${start + 1}: “${number}${text[place]}” is not a whole number.`);
    found.push({ number, name, sign, start });
  }
  return found;
}

class Parser {
  constructor(text, names) {
    if (!text.trim()) throw new Error(`Write an index, for example ${names[0]}.`);
    if (text.length > LONGEST) throw new Error(`The index has ${text.length} characters; at most ${LONGEST} are read.`);
    this.tokens = tokens(text);
    this.names = names;
    this.place = this.depth = 0;
  }

  get next() {
    return this.tokens[this.place];
  }

  where() {
    return this.next ? `At character ${this.next.start + 1}` : "At the end";
  }

  whole() {
    const made = this.binary(0);
    if (this.next) throw new Error(`${this.where()}: an operator is missing before “${this.next.number ?? this.next.name ?? this.next.sign}”.`);
    return made;
  }

  binary(level) {
    if (level === LEVELS.length) return this.unary();
    let made = this.binary(level + 1);
    while (this.next && LEVELS[level].includes(this.next.sign)) {
      const apply = BINARY[this.tokens[this.place++].sign], left = made, right = this.binary(level + 1);
      made = (values) => apply(left(values), right(values));
    }
    return made;
  }

  unary() {
    if (++this.depth > DEEPEST) throw new Error(`${this.where()}: more than ${DEEPEST} signs and parentheses inside each other.`);
    try {
      if (["-", "+", "~"].includes(this.next?.sign)) {
        const { sign } = this.tokens[this.place++], inside = this.unary();
        return { "-": (values) => -inside(values), "+": inside, "~": (values) => ~inside(values) }[sign];
      }
      return this.atom();
    } finally {
      this.depth--;
    }
  }

  atom() {
    const token = this.next;
    if (token?.number) {
      const value = BigInt(token.number);
      this.place++;
      return () => value;
    }
    if (token?.name) {
      if (!this.names.includes(token.name)) throw new Error(`${this.where()}: “${token.name}” is not known; ${this.names.join(", ")} are.`);
      this.place++;
      return (values) => values[token.name];
    }
    if (token?.sign === "(") {
      this.place++;
      const made = this.binary(0);
      if (this.next?.sign !== ")") throw new Error(`${this.where()}: the parenthesis of character ${token.start + 1} is not closed.`);
      this.place++;
      return made;
    }
    throw new Error(`${this.where()}: a number, a name or a parenthesis is missing.`);
  }
}

export const parse = (text, names) => new Parser(text, names).whole();
