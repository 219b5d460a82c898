// What tests/peers/test_kafkajs.py asks of kafkajs: one command, its answer as JSON on standard output.
//   node kafkajs.js ADDRESS produce TOPIC CODEC < lines of {"key", "value", "headers"}
//   node kafkajs.js ADDRESS consume TOPIC GROUP COUNT
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const [address, command, topic, argument, count] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "kafkajs", brokers: [address], logLevel: logLevel.ERROR });

async function produce(codec) {
  const text = require("fs").readFileSync(0, "utf8");
  const messages = text.split("\n").filter(Boolean).map((line) => JSON.parse(line));
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  const answer = await producer.send({ topic, messages, acks: -1, compression: CompressionTypes[codec] });
  await producer.disconnect();
  console.log(JSON.stringify(answer));
}

async function consume(group, wanted) {
  const consumer = kafka.consumer({ groupId: group, sessionTimeout: 6000 });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const found = [];
  await new Promise((done) => {
    consumer.run({
      autoCommitThreshold: 1,
      eachMessage: async ({ partition, message }) => {
        found.push({
          partition,
          offset: Number(message.offset),
          key: message.key && message.key.toString(),
          value: message.value && message.value.toString(),
          headers: Object.fromEntries(
            Object.entries(message.headers || {}).map(([name, value]) => [name, value.toString()]),
          ),
        });
        if (found.length === wanted) done();
      },
    });
  });
  await consumer.disconnect();
  console.log(JSON.stringify(found));
}

const action = command === "produce" ? produce(argument) : consume(argument, Number(count));
action.catch((error) => {
  console.error(error);
  process.exit(1);
});
