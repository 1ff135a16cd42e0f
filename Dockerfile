# The image of docker-compose.yaml: Airflow with the project's pinned packages, Java and Spark's jars. Spark's containers
# use it too, so that drivers and executors have one Python and one set of jars.
FROM apache/airflow:3.3.2-python3.11
COPY requirements.txt /requirements.txt
# A new volume gets the owner of the image's folder at that path; without one it belongs to root.
USER root
RUN install -d -o airflow -g 0 -m 775 /warehouse
USER airflow
# The project's pinned versions, including the Postgres driver.
RUN pip install --no-cache-dir --require-hashes -r /requirements.txt
# Java and the pinned jars at fixed paths.
COPY --chown=airflow:0 include /opt/build/include
RUN export SLUICE_CACHE=/home/airflow/sluice PYTHONPATH=/opt/build/include \
 && jars="$(python -m sluice.embedded jars --clouds s3)" \
 && java="$(python -c 'from sluice.embedded import home, java; print(java.find_java(home.cache_folder()).home)')" \
 && ln -s "${jars#spark: }" /home/airflow/spark-jars \
 && ln -s "$java" /home/airflow/java
