// The worker. Writes the same record as benchmarks/recorder.py; Node has no memory-mapped files, so it writes at
// the first start, at every 256th and at the last one, or at each when BENCH_EVERY is 1.
import fs from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { createHash } from 'node:crypto';
import { Worker } from 'bullmq';

const env = process.env;
const { hostname, port } = new URL(env.BENCH_URL);
const [total, every, concurrency] = [Number(env.BENCH_COUNT), Number(env.BENCH_EVERY), Number(env.BENCH_CONCURRENCY)];
const [COUNT, FIRST, LAST, SAMPLES, HEADER] = [0, 1, 2, 3, 4];
const ROOM = 100_000;
const words = new BigInt64Array(HEADER + Math.min(ROOM, Math.ceil(total / every)));
const bytes = Buffer.from(words.buffer);
const file = fs.openSync(`${env.BENCH_RECORDS}/${process.pid}.rec`, 'w');
let count = 0;
let written = HEADER;

function started(sent) {
  if (count % every === 0 && HEADER + count / every < words.length) {
    const now = process.hrtime.bigint();
    if (!count) words[FIRST] = now;
    words[HEADER + count / every] = now - (BigInt(sent) - 10n ** 18n);
    words[SAMPLES] = BigInt(count / every + 1);
  }
  count++;
  if (every === 1 || count === 1 || count % 256 === 0 || count >= total) {
    words[LAST] = process.hrtime.bigint();
    words[COUNT] = BigInt(count);
    const end = HEADER + Number(words[SAMPLES]);
    if (end > written) {
      fs.writeSync(file, bytes, written * 8, (end - written) * 8, written * 8);
      written = end;
    }
    fs.writeSync(file, bytes, 0, HEADER * 8, 0);
  }
}

const block = Buffer.alloc(2000, 'x');
function burn() {
  for (let n = 0; n < 80; n++) createHash('sha256').update(block).digest();
}

const kind = env.BENCH_HANDLER;
const worker = new Worker(
  'bench',
  async (job) => {
    const { sent } = job.data;
    started(sent);
    const heavy = kind === 'mixed' && sent.endsWith('0');
    if (kind === 'cpu' || heavy) burn();
    if (kind === 'io' || heavy) await sleep(2);
  },
  { connection: { host: hostname, port: Number(port), maxRetriesPerRequest: null }, concurrency },
);
worker.on('error', (error) => console.error(error));
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => worker.close().then(() => process.exit(0)));
