"""Loops inside of TensorFlow's graph: many updates in one call of the session, which costs a tenth of an update.

What is trained in a loop has to be built in it, so that every step computes it anew; its variables are made before.
"""
import sys

from common.mpi_tf import tf


def repeat(step, times):
    """The number of steps made, one after the other: `times`, or fewer when one says to stop.

    step() builds (operation, whether to go on), of which the operation does nothing where it says to stop.
    """
    def body(i, _):
        operation, go_on = step()
        with tf.control_dependencies([operation]):
            return i + tf.cast(go_on, tf.int32), tf.identity(go_on)
    return tf.while_loop(lambda i, go_on: (i < times) & go_on, body, [0, True], parallel_iterations=1)[0]


def for_each(update_once, inputs, columns, compiled):
    """{column: array with a row for each row of the inputs}: updates one after the other.

    update_once(*row) builds ({column: tensor}, operation that trains). When `compiled`, XLA makes one program of it,
    which takes some seconds at the first call with each number of rows.
    """
    def loop(*inputs):
        size = tf.shape(inputs[0])[0]

        def step(i, *outputs):
            metrics, train = update_once(*[x[i] for x in inputs])
            with tf.control_dependencies([train]):
                return i + 1, *[output.write(i, metrics[column]) for output, column in zip(outputs, columns)]
        outputs = [tf.TensorArray(tf.float32, size) for _ in columns]
        _, *outputs = tf.while_loop(lambda i, *_: i < size, step, [0, *outputs], parallel_iterations=1)
        return [output.stack() for output in outputs]
    inputs = list(inputs)
    if compiled and sys.platform == 'linux':                        # elsewhere TensorFlow may be built without XLA
        return dict(zip(columns, tf.xla.experimental.compile(loop, inputs)))
    return dict(zip(columns, loop(*inputs)))
