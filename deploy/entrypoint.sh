#!/usr/bin/env bash
# `executor`: be an executor of a Spark session on Kubernetes, which says all it needs to know in the environment.
# Everything else is for the command `holdfast`; `host FILE NAME` tells the health check whom to ask.
set -euo pipefail

if [ "${1:-}" = executor ]; then
  # Options of the JVM come one to a variable, numbered.
  options=()
  while IFS= read -r number; do
    name="SPARK_JAVA_OPT_$number"
    options+=("${!name}")
  done < <(compgen -e SPARK_JAVA_OPT_ | sed 's/^SPARK_JAVA_OPT_//' | sort -n)
  # The order of Spark's own image: settings, spark.executor.extraClassPath, Spark, and what somebody's image adds.
  classpath="${SPARK_CONF_DIR:-${SPARK_HOME:?}/conf}${HADOOP_CONF_DIR:+:$HADOOP_CONF_DIR}"
  classpath+="${SPARK_CLASSPATH:+:$SPARK_CLASSPATH}:${SPARK_HOME:?}/jars/*"
  classpath+="${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}:$PWD${SPARK_DIST_CLASSPATH:+:$SPARK_DIST_CLASSPATH}"
  exec "${JAVA_HOME:?}/bin/java" "${options[@]}" \
    "-Xms${SPARK_EXECUTOR_MEMORY:?}" "-Xmx${SPARK_EXECUTOR_MEMORY}" -cp "$classpath" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "${SPARK_DRIVER_URL:?}" --executor-id "${SPARK_EXECUTOR_ID:?}" --cores "${SPARK_EXECUTOR_CORES:?}" \
    --app-id "${SPARK_APPLICATION_ID:?}" --hostname "${SPARK_EXECUTOR_POD_IP:?}" \
    --resourceProfileId "${SPARK_RESOURCE_PROFILE_ID:-0}" --podName "${SPARK_EXECUTOR_POD_NAME:?}"
fi
exec holdfast "$@"
