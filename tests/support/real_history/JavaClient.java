import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's own client, driven by lines on its standard input: java JavaClient.java producer|consumer ADDRESS KEY=VALUE...
 *
 * <p>It says "ready" first. Fields are separated by tabs. Bytes are in base64, and null is "-". Headers are "name:bytes,name:bytes".
 *
 * <pre>
 * producer:  send NUMBER TOPIC PARTITION TIME KEY VALUE HEADERS   ->  acked NUMBER OFFSET | failed NUMBER ERROR
 *            flush                                                ->  flushed
 * consumer:  assign TOPIC PARTITION OFFSET, unassign              ->  done | failed ERROR
 *            poll                                                 ->  record OFFSET TIME KEY VALUE HEADERS ...,
 *                                                                     then polled | end OFFSET | failed ERROR
 *            offsets TOPIC PARTITION                              ->  offsets LOW HIGH | failed ERROR
 * </pre>
 */
public class JavaClient {
    private static final Base64.Encoder TO_TEXT = Base64.getEncoder();
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[1]);
        for (int index = 2; index < arguments.length; index++) {
            String[] pair = arguments[index].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        say("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        if (arguments[0].equals("producer")) {
            produce(lines, settings);
        } else {
            consume(lines, settings);
        }
    }

    private static void produce(BufferedReader lines, Properties settings) throws Exception {
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            for (String line; (line = lines.readLine()) != null; ) {
                String[] part = line.split("\t", -1);
                if (part[0].equals("flush")) {
                    producer.flush();
                    say("flushed");
                } else {
                    send(producer, part);
                }
            }
        }
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, String[] part) {
        ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(
                part[2], Integer.parseInt(part[3]), Long.parseLong(part[4]), bytes(part[5]), bytes(part[6]));
        for (String each : part[7].isEmpty() ? new String[0] : part[7].split(",")) {
            String[] pair = each.split(":", 2);
            record.headers().add(pair[0], bytes(pair[1]));
        }
        try {
            producer.send(record, (sent, error) -> {
                if (error == null) {
                    say("acked", part[1], sent.offset());
                } else {
                    say("failed", part[1], oneLine(error));
                }
            });
        } catch (RuntimeException error) {
            say("failed", part[1], oneLine(error));
        }
    }

    private static void consume(BufferedReader lines, Properties settings) throws Exception {
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            for (String line; (line = lines.readLine()) != null; ) {
                String[] part = line.split("\t", -1);
                try {
                    answer(consumer, part);
                } catch (RuntimeException error) {
                    say("failed", oneLine(error));
                }
            }
        }
    }

    private static void answer(KafkaConsumer<byte[], byte[]> consumer, String[] part) {
        switch (part[0]) {
            case "assign" -> {
                TopicPartition partition = new TopicPartition(part[1], Integer.parseInt(part[2]));
                // What was fetched of a partition is thrown away with its assignment.
                consumer.unsubscribe();
                consumer.assign(List.of(partition));
                consumer.seek(partition, Long.parseLong(part[3]));
                say("done");
            }
            case "unassign" -> {
                consumer.unsubscribe();
                say("done");
            }
            case "poll" -> poll(consumer);
            case "offsets" -> {
                TopicPartition partition = new TopicPartition(part[1], Integer.parseInt(part[2]));
                Map<TopicPartition, Long> low = consumer.beginningOffsets(List.of(partition));
                Map<TopicPartition, Long> high = consumer.endOffsets(List.of(partition));
                say("offsets", low.get(partition), high.get(partition));
            }
            default -> throw new IllegalArgumentException(part[0]);
        }
    }

    private static void poll(KafkaConsumer<byte[], byte[]> consumer) {
        boolean isEmpty = true;
        for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(100))) {
            isEmpty = false;
            StringBuilder headers = new StringBuilder();
            for (Header header : each.headers()) {
                headers.append(headers.length() == 0 ? "" : ",").append(header.key()).append(":").append(text(header.value()));
            }
            say("record", each.offset(), each.timestamp(), text(each.key()), text(each.value()), headers);
        }
        for (TopicPartition partition : consumer.assignment()) {
            if (isEmpty) {
                long position = consumer.position(partition);
                if (position >= consumer.endOffsets(List.of(partition)).get(partition)) {
                    say("end", position);
                    return;
                }
            }
        }
        say("polled");
    }

    private static synchronized void say(Object... fields) {
        StringBuilder line = new StringBuilder();
        for (Object field : fields) {
            line.append(line.length() == 0 ? "" : "\t").append(field);
        }
        OUT.println(line);
        OUT.flush();
    }

    private static String oneLine(Exception error) {
        return error.toString().replaceAll("\\s+", " ");
    }

    private static String text(byte[] data) {
        return data == null ? "-" : TO_TEXT.encodeToString(data);
    }

    private static byte[] bytes(String text) {
        return text.equals("-") ? null : Base64.getDecoder().decode(text);
    }
}
