// The producer: BENCH_COUNT jobs in bulks of 1,000, or one by one at BENCH_RATE a second.
import { Queue } from 'bullmq';

const { BENCH_URL, BENCH_COUNT, BENCH_SIZE, BENCH_RATE, BENCH_REMOVE } = process.env;
const [count, size, rate] = [Number(BENCH_COUNT), Number(BENCH_SIZE), Number(BENCH_RATE)];
const { hostname, port } = new URL(BENCH_URL);
const queue = new Queue('bench', { connection: { host: hostname, port: Number(port) } });
const opts = BENCH_REMOVE ? { removeOnComplete: true } : {};
const text = 'x'.repeat(Math.max(0, size - 40));
// As a string: a JavaScript number has no room for these digits.
const payload = () => ({ sent: String(10n ** 18n + process.hrtime.bigint()), text });

if (rate) {
  const began = performance.now();
  for (let n = 0; n < count; n++) {
    const wait = began + (n * 1000) / rate - performance.now();
    if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
    await queue.add('job', payload(), opts);
  }
} else {
  for (let n = 0; n < count; n += 1000) {
    const bulk = Array.from({ length: Math.min(1000, count - n) }, () => ({ name: 'job', data: payload(), opts }));
    await queue.addBulk(bulk);
  }
}
await queue.close();
